/*
 * Copies the memory that a machine has changed since it was started from its base memory file: the private pages of its mapping
 * of that file. The machine must be paused from "go" until "copied"; everything slow is done before and after.
 *
 *   vm-pages PID INODE OUTPUT BUFFER_LIMIT_MB
 *
 *   -> ready <pages dirty now>       buffer allocated and touched
 *   <- go                            the machine is paused
 *   -> copied <pages> <zero pages>   it may be resumed (pages beyond the buffer were written directly, which took longer)
 *   -> done                          OUTPUT, a clone of the base file, holds the memory and is synced
 *
 * Pages of zeros become holes. Exit code 1: failed, with a message on stderr; OUTPUT is unusable. 75: no room.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_REGIONS = 64, BATCH = 512, EXIT_NO_ROOM = 75, MIN_HOLE_PAGES = 16, MAX_RUN_PAGES = 4096 };

struct region {
  uint64_t start, end, file_offset;
};
/* `pages` neighbouring pages at file offset `offset`, kept at `data` unless they were already written. */
struct run {
  uint64_t offset, address;
  uint32_t pages;
  char zero;
  const char *data;
};

static size_t page_size;
static int output = -1;

static void fail(const char *what) {
  int error = errno;
  fprintf(stderr, "vm-pages: %s: %s\n", what, strerror(error));
  exit(error == ENOSPC || error == EDQUOT ? EXIT_NO_ROOM : 1);
}

static int find_regions(const char *pid, uint64_t inode, struct region *regions) {
  char path[64], line[4400];
  snprintf(path, sizeof path, "/proc/%s/maps", pid);
  FILE *maps = fopen(path, "r");
  if (!maps) fail(path);
  int count = 0;
  while (fgets(line, sizeof line, maps)) {
    uint64_t start, end, offset, found;
    if (sscanf(line, "%lx-%lx %*s %lx %*s %lu", &start, &end, &offset, &found) != 4 || found != inode) continue;
    errno = E2BIG;
    if (count == MAX_REGIONS) fail("the memory is mapped in too many pieces");
    regions[count++] = (struct region){start, end, offset};
  }
  fclose(maps);
  errno = ENOENT;
  if (count == 0) fail("the process does not map the base memory");
  return count;
}

static int is_private(uint64_t entry) {
  int there = (entry >> 63) & 1 || (entry >> 62) & 1;
  return there && !((entry >> 61) & 1);
}

/* Appends the changed pages as runs and returns their number. `runs` NULL: only counts. */
static uint64_t scan(int pagemap, const struct region *regions, int region_count, struct run *runs, size_t *run_count) {
  uint64_t entries[8192], total = 0;
  size_t count = 0;
  for (int r = 0; r < region_count; r++) {
    uint64_t pages = (regions[r].end - regions[r].start) / page_size;
    int open_run = 0;
    for (uint64_t at = 0; at < pages;) {
      uint64_t want = pages - at < 8192 ? pages - at : 8192;
      ssize_t got = pread(pagemap, entries, want * 8, (off_t)((regions[r].start / page_size + at) * 8));
      if (got <= 0 || got % 8) fail("cannot read the pagemap");
      for (ssize_t i = 0; i < got / 8; i++) {
        if (!is_private(entries[i])) {
          open_run = 0;
          continue;
        }
        total++;
        if (!runs) continue;
        if (open_run && runs[count - 1].pages < MAX_RUN_PAGES) runs[count - 1].pages++;
        else {
          uint64_t page = at + (uint64_t)i;
          runs[count++] = (struct run){regions[r].file_offset + page * page_size, regions[r].start + page * page_size, 1, 0, NULL};
          open_run = 1;
        }
      }
      at += (uint64_t)got / 8;
    }
  }
  if (run_count) *run_count = count;
  return total;
}

static void read_memory(pid_t pid, const struct run *runs, size_t count, char *into) {
  struct iovec local[1], remote[BATCH];
  for (size_t done = 0; done < count;) {
    size_t bytes = 0, n = 0;
    for (; n < BATCH && done + n < count; n++) {
      remote[n] = (struct iovec){(void *)(uintptr_t)runs[done + n].address, runs[done + n].pages * page_size};
      bytes += remote[n].iov_len;
    }
    local[0] = (struct iovec){into, bytes};
    ssize_t got = process_vm_readv(pid, local, 1, remote, n, 0);
    if (got < 0) fail("cannot read the machine's memory");
    if ((size_t)got != bytes) {
      errno = EIO;
      fail("read less of the machine's memory than it has");
    }
    into += bytes;
    done += n;
  }
}

static void write_at(const char *data, size_t bytes, uint64_t offset) {
  while (bytes > 0) {
    ssize_t wrote = pwrite(output, data, bytes, (off_t)offset);
    if (wrote < 0) fail("cannot write the memory image");
    data += wrote;
    bytes -= (size_t)wrote;
    offset += (uint64_t)wrote;
  }
}

static int is_zero(const char *page) {
  const uint64_t *words = (const uint64_t *)page;
  for (size_t i = 0; i < page_size / 8; i++)
    if (words[i]) return 0;
  return 1;
}

/* Writes the pages, with long stretches of zeros as holes. Returns the number of pages in holes. */
static uint64_t write_run(const struct run *run, const char *data) {
  uint64_t holes = 0;
  for (uint32_t at = 0; at < run->pages;) {
    uint32_t zeros = 0;
    while (at + zeros < run->pages && is_zero(data + (at + zeros) * page_size)) zeros++;
    if (zeros >= MIN_HOLE_PAGES) {
      if (fallocate(output, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(run->offset + at * page_size),
                    (off_t)(zeros * page_size)) != 0)
        fail("cannot punch a hole");
      holes += zeros;
      at += zeros;
      continue;
    }
    uint32_t end = at + (zeros ? zeros : 1), trailing = 0;
    /* Find the next long stretch of zeros. */
    for (; end < run->pages && trailing < MIN_HOLE_PAGES; end++) trailing = is_zero(data + end * page_size) ? trailing + 1 : 0;
    if (trailing >= MIN_HOLE_PAGES) end -= trailing;
    write_at(data + at * page_size, (end - at) * page_size, run->offset + at * page_size);
    at = end;
  }
  return holes;
}

int main(int argc, char **argv) {
  errno = EINVAL;
  if (argc != 5) fail("usage: PID INODE OUTPUT BUFFER_LIMIT_MB");
  page_size = (size_t)sysconf(_SC_PAGESIZE);
  pid_t pid = (pid_t)strtol(argv[1], NULL, 10);
  size_t limit = strtoul(argv[4], NULL, 10) << 20;
  struct region regions[MAX_REGIONS];
  int region_count = find_regions(argv[1], strtoull(argv[2], NULL, 10), regions);
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/pagemap", argv[1]);
  int pagemap = open(path, O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) fail(path);
  output = open(argv[3], O_WRONLY | O_CLOEXEC);
  if (output < 0) fail("cannot open the memory image");

  uint64_t now = scan(pagemap, regions, region_count, NULL, NULL), mapped = 0;
  for (int r = 0; r < region_count; r++) mapped += (regions[r].end - regions[r].start) / page_size;
  /* The machine changes more pages until it is paused. */
  size_t room = (size_t)(now + now / 4 + 4096) * page_size;
  if (room > limit) room = limit;
  char *buffer = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  struct run *runs = mmap(NULL, (mapped / 2 + mapped / MAX_RUN_PAGES + MAX_REGIONS) * sizeof *runs, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (buffer == MAP_FAILED || runs == MAP_FAILED) fail("no memory for the buffer");
  printf("ready %lu\n", now);
  fflush(stdout);

  char line[16];
  errno = EPIPE;
  if (!fgets(line, sizeof line, stdin) || strcmp(line, "go\n") != 0) fail("not told to go");
  size_t run_count, kept = 0;
  uint64_t pages = scan(pagemap, regions, region_count, runs, &run_count), holes = 0;
  size_t used = 0;
  while (kept < run_count && used + runs[kept].pages * page_size <= room) {
    runs[kept].data = buffer + used;
    used += runs[kept++].pages * page_size;
  }
  read_memory(pid, runs, kept, buffer);
  /* Pages that do not fit are written during the pause. */
  if (kept < run_count) {
    size_t chunk_pages = 1024;
    char *chunk = malloc(chunk_pages * page_size);
    if (!chunk) fail("no memory");
    for (size_t r = kept; r < run_count; r++)
      for (uint32_t at = 0; at < runs[r].pages; at += chunk_pages) {
        struct run part = runs[r];
        part.offset += at * page_size;
        part.address += at * page_size;
        part.pages = runs[r].pages - at < chunk_pages ? runs[r].pages - at : (uint32_t)chunk_pages;
        read_memory(pid, &part, 1, chunk);
        holes += write_run(&part, chunk);
      }
  }
  printf("copied %lu\n", pages);
  fflush(stdout);

  for (size_t r = 0; r < kept; r++) holes += write_run(&runs[r], runs[r].data);
  if (fsync(output) != 0) fail("cannot sync the memory image");
  printf("done %lu\n", holes);
  return 0;
}
