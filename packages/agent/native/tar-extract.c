#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "files.h"
#include "tar.h"
#include "wire.h"

#define IN_ROOM 65536
#define EXTENDED_MAX (1u << 20) /* bytes of one pax or long-name header */
#define TIMES_MAX 1000000       /* directories whose time is set at the end */

/* What the headers before an entry say about it. */
struct entry {
  char *path, *link; /* NULL: as in the header */
  bool has_size;
  uint64_t size;
};

struct directory_time {
  char *path;
  time_t time;
};

static uint8_t in[IN_ROOM];
static size_t in_start, in_size;
static unsigned long entries, skipped;
static struct directory_time *times;
static size_t time_count, time_room;

_Noreturn static void invalid(const char *what) {
  dprintf(2, "invalid %s\n", what);
  _exit(2);
}

_Noreturn static void failed(int error, const char *path) {
  dprintf(2, "failed %d %s\n", error, path);
  _exit(1);
}

/* Up to `want` bytes in one piece; 0 at the end. */
static size_t next(uint8_t **at, size_t want) {
  if (in_start == in_size) {
    ssize_t n;
    do n = read(0, in, IN_ROOM);
    while (n < 0 && errno == EINTR);
    if (n < 0) failed(errno, "");
    in_start = 0;
    in_size = (size_t)n;
  }
  size_t have = in_size - in_start;
  if (have > want) have = want;
  *at = in + in_start;
  in_start += have;
  return have;
}

static size_t read_some(void *to, size_t size) {
  size_t done = 0;
  while (done < size) {
    uint8_t *at;
    size_t n = next(&at, size - done);
    if (n == 0) break;
    memcpy((uint8_t *)to + done, at, n);
    done += n;
  }
  return done;
}

static void skip(uint64_t size) {
  while (size > 0) {
    uint8_t *at;
    size_t n = next(&at, size < IN_ROOM ? (size_t)size : IN_ROOM);
    if (n == 0) invalid("it ends in the middle of an entry");
    size -= n;
  }
}

static uint64_t padded(uint64_t size) { return (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK; }

static uint64_t number(const char *field, size_t room) {
  uint64_t value = 0;
  if (field[0] & 0x80) {
    value = field[0] & 0x7f;
    for (size_t i = 1; i < room; i++) value = value << 8 | (uint8_t)field[i];
    return field[0] & 0x40 ? 0 : value; /* negative: a time before 1970 */
  }
  size_t i = 0;
  while (i < room && (field[i] == ' ' || field[i] == 0)) i++;
  for (; i < room && field[i] >= '0' && field[i] <= '7'; i++) value = value << 3 | (uint64_t)(field[i] - '0');
  return value;
}

static bool checksum_right(const struct tar_header *h) {
  unsigned sum = 0;
  for (size_t i = 0; i < sizeof *h; i++) {
    bool inside = i >= offsetof(struct tar_header, checksum) && i < offsetof(struct tar_header, type);
    sum += inside ? ' ' : ((const uint8_t *)h)[i];
  }
  return sum == number(h->checksum, sizeof h->checksum);
}

static char *read_extended(uint64_t size) {
  if (size > EXTENDED_MAX) invalid("an extended header is larger than 1 MiB");
  char *text = malloc((size_t)size + 1);
  if (!text) failed(ENOMEM, "");
  if (read_some(text, (size_t)size) != size) invalid("it ends in an extended header");
  text[size] = 0;
  skip(padded(size) - size);
  return text;
}

/* Records "size key=value\n". A value of the next entry replaces the header's. */
static void read_pax(char *text, size_t size, struct entry *entry) {
  for (size_t at = 0; at < size;) {
    char *end;
    unsigned long long record = strtoull(text + at, &end, 10);
    if (*end != ' ' || record < 4 || record > size - at || text[at + record - 1] != '\n') invalid("a pax record is malformed");
    char *key = end + 1, *stop = text + at + record - 1;
    char *value = memchr(key, '=', (size_t)(stop - key));
    if (!value) invalid("a pax record has no value");
    *value++ = 0;
    *stop = 0;
    if (strcmp(key, "path") == 0) {
      free(entry->path);
      entry->path = strdup(value);
    } else if (strcmp(key, "linkpath") == 0) {
      free(entry->link);
      entry->link = strdup(value);
    } else if (strcmp(key, "size") == 0) {
      entry->size = strtoull(value, NULL, 10);
      entry->has_size = true;
    } else if (strncmp(key, "GNU.sparse.", 11) == 0) {
      invalid("sparse entries are not supported; pack without --sparse");
    }
    at += record;
  }
}

/* A path relative to the destination: leading slashes and dots go; NULL for one that has `..`, or nothing left. */
static char *clean_path(char *path) {
  char *from = path, *to = path;
  while (*from) {
    while (*from == '/') from++;
    size_t size = strcspn(from, "/");
    if (size == 0) break;
    if (size == 2 && from[0] == '.' && from[1] == '.') return NULL;
    if (!(size == 1 && from[0] == '.')) {
      if (to > path) *to++ = '/';
      memmove(to, from, size);
      to += size;
    }
    from += size;
  }
  *to = 0;
  return *path ? path : NULL;
}

static void make_parents(char *path) {
  char *slash = strrchr(path, '/');
  if (!slash) return;
  *slash = 0;
  int error = make_directories(path);
  *slash = '/';
  if (error) failed(error == EEXIST ? ENOTDIR : error, path);
}

/* Makes way for a new entry; a directory only gives way to a directory. */
static void clear_place(const char *path) {
  struct stat st;
  if (lstat(path, &st) != 0) return;
  if (S_ISDIR(st.st_mode)) failed(EISDIR, path);
  if (unlink(path) != 0) failed(errno, path);
}

static void extract_file(const char *path, uint64_t size) {
  clear_place(path);
  int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) failed(errno, path);
  uint64_t left = size;
  while (left > 0) {
    uint8_t *at;
    size_t n = next(&at, left < IN_ROOM ? (size_t)left : IN_ROOM);
    if (n == 0) invalid("it ends in the middle of a file");
    if (!write_all(fd, at, n)) failed(errno, path);
    left -= n;
  }
  if (close(fd) != 0) failed(errno, path);
  skip(padded(size) - size);
}

static void extract_directory(const char *path, time_t time) {
  struct stat st;
  /* A link to a directory stays: `lib/` unpacked over /lib -> usr/lib must not replace the link. */
  if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
    clear_place(path);
    if (mkdir(path, 0700) != 0) failed(errno, path);
  }
  if (time_count == TIMES_MAX) return;
  if (time_count == time_room) {
    time_room = time_room ? time_room * 2 : 64;
    times = realloc(times, time_room * sizeof *times);
    if (!times) failed(ENOMEM, path);
  }
  times[time_count++] = (struct directory_time){strdup(path), time};
}

static void extract(const struct tar_header *h, char *path, char *link, uint64_t size) {
  mode_t mode = (mode_t)number(h->mode, sizeof h->mode) & 07777;
  time_t time = (time_t)number(h->mtime, sizeof h->mtime);
  dev_t device = makedev((unsigned)number(h->major, sizeof h->major), (unsigned)number(h->minor, sizeof h->minor));
  make_parents(path);
  char type = h->type;
  switch (type) {
    case '1':
      link = clean_path(link);
      if (!link) {
        skipped++;
        return;
      }
      clear_place(path);
      if (linkat(AT_FDCWD, link, AT_FDCWD, path, 0) != 0) failed(errno, path);
      return; /* owner, mode and time are those of the file */
    case '2':
      clear_place(path);
      if (symlink(link, path) != 0) failed(errno, path);
      break;
    case '3':
    case '4':
    case '6':
      clear_place(path);
      if (mknod(path, (type == '3' ? S_IFCHR : type == '4' ? S_IFBLK : S_IFIFO) | 0600, device) != 0) failed(errno, path);
      break;
    case '5': extract_directory(path, time); break;
    default: extract_file(path, size); break;
  }
  if (fchownat(AT_FDCWD, path, (uid_t)number(h->uid, sizeof h->uid), (gid_t)number(h->gid, sizeof h->gid), AT_SYMLINK_NOFOLLOW) != 0)
    failed(errno, path);
  if (type != '2' && chmod(path, mode) != 0) failed(errno, path);
  struct timespec both[2] = {{.tv_sec = time}, {.tv_sec = time}};
  if (type != '5') utimensat(AT_FDCWD, path, both, AT_SYMLINK_NOFOLLOW);
}

static char *header_path(const struct tar_header *h) {
  char *path;
  bool ustar = memcmp(h->magic, "ustar\0", 6) == 0 && h->prefix[0];
  int n = ustar ? asprintf(&path, "%.155s/%.100s", h->prefix, h->name) : asprintf(&path, "%.100s", h->name);
  if (n < 0) failed(ENOMEM, "");
  return path;
}

static void finish_entry(struct entry *entry) {
  free(entry->path);
  free(entry->link);
  *entry = (struct entry){0};
}

static void extract_all(void) {
  struct entry entry = {0};
  for (bool first = true;; first = false) {
    struct tar_header h;
    size_t n = read_some(&h, sizeof h);
    if (n == 0) {
      if (first) invalid("it is empty");
      return; /* an archive cut at an entry's end, as some tools write them */
    }
    if (n != sizeof h) invalid(first ? "it is no tar archive" : "it ends in the middle of a header");
    if (h.name[0] == 0 && h.checksum[0] == 0) { /* the end mark; what follows is padding */
      uint8_t *at;
      while (next(&at, IN_ROOM) > 0) continue;
      return;
    }
    if (!checksum_right(&h)) invalid(first ? "it is no tar archive" : "a header's checksum is wrong");
    uint64_t size = entry.has_size ? entry.size : number(h.size, sizeof h.size);
    if (h.type == 'x' || h.type == 'L' || h.type == 'K') {
      size = number(h.size, sizeof h.size);
      char *text = read_extended(size);
      if (h.type == 'x') read_pax(text, (size_t)size, &entry);
      char **slot = h.type == 'L' ? &entry.path : &entry.link;
      if (h.type != 'x') {
        free(*slot);
        *slot = strdup(text);
      }
      free(text);
      continue;
    }
    bool file = h.type == '0' || h.type == 0 || h.type == '7';
    char *path = entry.path ? strdup(entry.path) : header_path(&h), *link = NULL;
    /* Old archives mark directories by a slash at the end. */
    if (file && *path && path[strlen(path) - 1] == '/') h.type = '5', file = false;
    bool known = file || (h.type >= '1' && h.type <= '6');
    if (h.type == 'S') invalid("sparse entries are not supported; pack without --sparse");
    if (!entry.link && asprintf(&link, "%.100s", h.link) < 0) failed(ENOMEM, "");
    char *clean = known ? clean_path(path) : NULL;
    if (clean) {
      extract(&h, clean, entry.link ? entry.link : link, size);
      entries++;
      if (!file) skip(padded(h.type == '5' || h.type == '1' || h.type == '2' ? 0 : size));
    } else {
      if (known && strstr(path, "..")) skipped++; /* else it is the destination itself */
      skip(padded(size));
    }
    free(path);
    free(link);
    finish_entry(&entry);
  }
}

int tar_extract(const char *directory) {
  int error = make_directories(directory);
  if (error) failed(error == EEXIST ? ENOTDIR : error, directory);
  if (chdir(directory) != 0) failed(errno, directory);
  umask(0);
  extract_all();
  while (time_count > 0) {
    struct directory_time *d = &times[--time_count];
    struct timespec both[2] = {{.tv_sec = d->time}, {.tv_sec = d->time}};
    utimensat(AT_FDCWD, d->path, both, AT_SYMLINK_NOFOLLOW);
  }
  dprintf(2, "done %lu %lu\n", entries, skipped);
  return 0;
}
