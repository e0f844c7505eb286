/*
 * Finds the chunks of an image that hold data, and the chunks that share their blocks with a base image on the same file
 * system, which a checkpoint need not read, hash or upload again. Sharing is read from the extent maps, so the cost depends on
 * the number of extents and not on the bytes.
 */
#include "cloche-sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct piece {
  uint64_t logical, physical, length;
  int comparable;
};
struct pieces {
  struct piece *items;
  size_t count, room;
};

static int add_piece(struct pieces *list, const struct fiemap_extent *extent) {
  const uint32_t vague =
      FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_NOT_ALIGNED;
  if (extent->fe_flags & FIEMAP_EXTENT_UNWRITTEN) return 0; /* Reads as zeros: a hole. */
  int comparable = !(extent->fe_flags & vague);
  if (list->count > 0) {
    struct piece *last = &list->items[list->count - 1];
    if (last->comparable && comparable && last->logical + last->length == extent->fe_logical &&
        last->physical + last->length == extent->fe_physical) {
      last->length += extent->fe_length;
      return 0;
    }
  }
  if (list->count == list->room) {
    size_t room = list->room ? list->room * 2 : 1024;
    struct piece *grown = realloc(list->items, room * sizeof *grown);
    if (!grown) return -1;
    list->items = grown;
    list->room = room;
  }
  list->items[list->count++] = (struct piece){extent->fe_logical, extent->fe_physical, extent->fe_length, comparable};
  return 0;
}

static int load(const char *file, struct pieces *list, uint64_t *size) {
  enum { BATCH = 512 };
  struct stat status;
  int fd = open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -1;
  struct fiemap *map = calloc(1, sizeof *map + BATCH * sizeof(struct fiemap_extent));
  int result = map && fstat(fd, &status) == 0 ? 0 : -1;
  if (result == 0) *size = (uint64_t)status.st_size;
  uint64_t start = 0;
  for (int last = 0; result == 0 && !last;) {
    map->fm_start = start;
    map->fm_length = FIEMAP_MAX_OFFSET - start;
    map->fm_flags = FIEMAP_FLAG_SYNC;
    map->fm_extent_count = BATCH;
    result = ioctl(fd, FS_IOC_FIEMAP, map);
    if (result != 0 || map->fm_mapped_extents == 0) break;
    for (uint32_t i = 0; result == 0 && i < map->fm_mapped_extents; i++) {
      const struct fiemap_extent *extent = &map->fm_extents[i];
      result = add_piece(list, extent);
      if (extent->fe_flags & FIEMAP_EXTENT_LAST) last = 1;
      start = extent->fe_logical + extent->fe_length;
    }
  }
  int error = errno;
  free(map);
  close(fd);
  errno = error;
  return result;
}

/* The next part of `list` inside [from, end), clipped; advances *index. 0: none left. */
static int part(const struct pieces *list, size_t *index, uint64_t *from, uint64_t end, struct piece *out) {
  if (*from >= end) return 0;
  while (*index < list->count && list->items[*index].logical + list->items[*index].length <= *from) (*index)++;
  if (*index >= list->count || list->items[*index].logical >= end) return 0;
  const struct piece *item = &list->items[*index];
  uint64_t begin = item->logical > *from ? item->logical : *from;
  uint64_t stop = item->logical + item->length < end ? item->logical + item->length : end;
  *out = (struct piece){begin, item->physical + (begin - item->logical), stop - begin, item->comparable};
  *from = stop;
  return 1;
}

/*
 * Writes one byte for each chunk of `image` to the file `out`: '0' all zeros, '=' the same blocks as `base` ("-": none),
 * 'd' own data. Answers the number of chunks.
 */
int disk_chunk_map(struct answer *answer, const char *image, const char *base, const char *out, const char *bytes) {
  uint64_t chunk = strtoull(bytes, NULL, 10), size = 0, base_size = 0;
  struct pieces own = {0}, theirs = {0};
  char *marks = NULL;
  int result = -1, fd = -1;
  if (chunk < 4096) return fail(answer, EINVAL, "chunk of %s bytes", bytes);
  if (load(image, &own, &size) != 0) {
    fail(answer, errno, "extents of %s", image);
    goto end;
  }
  if (strcmp(base, "-") != 0 && load(base, &theirs, &base_size) != 0) {
    fail(answer, errno, "extents of %s", base);
    goto end;
  }
  uint64_t count = (size + chunk - 1) / chunk;
  marks = malloc(count ? count : 1);
  if (!marks) {
    fail(answer, ENOMEM, "chunk map of %s", image);
    goto end;
  }
  size_t a = 0, b = 0;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t end = (i + 1) * chunk < size ? (i + 1) * chunk : size;
    uint64_t from_a = i * chunk, from_b = i * chunk;
    int data = 0, same = end <= base_size;
    for (;;) {
      struct piece pa, pb;
      int has_a = part(&own, &a, &from_a, end, &pa), has_b = part(&theirs, &b, &from_b, end, &pb);
      if (has_a) data = 1;
      if (!has_a && !has_b) break;
      if (!has_a || !has_b || !pa.comparable || !pb.comparable || pa.logical != pb.logical || pa.physical != pb.physical ||
          pa.length != pb.length) {
        same = 0;
        if (data) break;
      }
    }
    marks[i] = !data ? '0' : same ? '=' : 'd';
  }
  fd = open(out, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    fail(answer, errno, "opening %s", out);
    goto end;
  }
  for (uint64_t sent = 0; sent < count;) {
    ssize_t wrote = write(fd, marks + sent, count - sent);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      fail(answer, errno, "writing %s", out);
      goto end;
    }
    sent += (uint64_t)wrote;
  }
  result = done(answer, "%llu", (unsigned long long)count);
end:
  if (fd >= 0) close(fd);
  free(marks);
  free(own.items);
  free(theirs.items);
  return result;
}
