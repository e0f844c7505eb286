#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "account.h"
#include "directory.h"
#include "tar.h"
#include "temporary.h"
#include "walk.h"
#include "wire.h"

#define OUT_ROOM 65536
#define XATTRS_MAX (256u << 10) /* bytes of extended attributes of one file, names and values */
#define LINKS_ROOM 65536 /* hash buckets for files with several names */

struct known_link {
  dev_t device;
  ino_t inode;
  char *path;
  struct known_link *next;
};

static uint8_t out[OUT_ROOM];
static size_t out_size;
static struct account_names names;
static struct known_link *links[LINKS_ROOM];
static unsigned long entries, skipped;

static int failed(int error, const char *path) {
  dprintf(2, "failed %d %s\n", error, path);
  return 1;
}

static void flush(void) {
  if (!write_all(1, out, out_size)) _exit(failed(errno, ""));
  out_size = 0;
}

static void emit(const void *data, size_t size) {
  if (out_size + size > OUT_ROOM) flush();
  if (size > OUT_ROOM) {
    if (!write_all(1, data, size)) _exit(failed(errno, ""));
    return;
  }
  memcpy(out + out_size, data, size);
  out_size += size;
}

static void pad(uint64_t size) {
  static const uint8_t zeros[TAR_BLOCK];
  if (size % TAR_BLOCK) emit(zeros, TAR_BLOCK - size % TAR_BLOCK);
}

/* Octal if it fits, otherwise base 256 in two's complement, which every current tar reads. */
static void number(char *field, size_t room, int64_t value) {
  if (value >= 0 && value < 1ll << (3 * (room - 1))) {
    char text[16];
    snprintf(text, sizeof text, "%0*llo", (int)room - 1, (unsigned long long)value);
    memcpy(field, text, room - 1);
    return;
  }
  field[0] = (char)(value < 0 ? 0xff : 0x80);
  for (size_t i = room; i-- > 1; value >>= 8) field[i] = (char)(value & 0xff);
}

static void emit_header(struct tar_header *h) {
  memcpy(h->magic, (char[8]){'u', 's', 't', 'a', 'r', 0, '0', '0'}, 8);
  memset(h->checksum, ' ', sizeof h->checksum);
  unsigned sum = 0;
  for (size_t i = 0; i < sizeof *h; i++) sum += ((unsigned char *)h)[i];
  char text[16];
  snprintf(text, sizeof text, "%06o", sum);
  memcpy(h->checksum, text, 7); /* NUL included; a space follows */
  emit(h, sizeof *h);
}

/* Adds one record "size key=value\n", whose size counts itself. */
static void pax_bytes(struct bytes *b, const char *key, const void *value, size_t value_size) {
  size_t body = strlen(key) + value_size + 3, size = body, digits;
  do {
    digits = (size_t)snprintf(NULL, 0, "%zu", size);
    if (size == body + digits) break;
    size = body + digits;
  } while (true);
  char text[32];
  snprintf(text, sizeof text, "%zu ", size);
  put_raw(b, text, strlen(text));
  put_raw(b, key, strlen(key));
  put_raw(b, "=", 1);
  put_raw(b, value, value_size);
  put_raw(b, "\n", 1);
}

static void pax_record(struct bytes *b, const char *key, const char *value) { pax_bytes(b, key, value, strlen(value)); }

/* Writes seconds with their fraction. A negative time counts down from the second above it. */
static void pax_time(struct bytes *b, const char *key, struct timespec time) {
  char text[48];
  bool negative = time.tv_sec < 0;
  if (negative && time.tv_nsec > 0) time = (struct timespec){time.tv_sec + 1, 1000000000 - time.tv_nsec};
  long long seconds = negative ? -(long long)time.tv_sec : (long long)time.tv_sec;
  snprintf(text, sizeof text, "%s%lld.%09ld", negative ? "-" : "", seconds, time.tv_nsec);
  size_t size = strlen(text);
  while (text[size - 1] == '0') text[--size] = 0;
  if (text[size - 1] == '.') text[--size] = 0;
  pax_record(b, key, text);
}

/* Only attributes of users and capabilities of programs are packed; the others belong to the system. */
static bool is_packed_xattr(const char *name) { return strncmp(name, "user.", 5) == 0 || strcmp(name, "security.capability") == 0; }

static void pax_xattrs(struct bytes *b, int fd) {
  static char list[65536], value[65536];
  ssize_t size = flistxattr(fd, list, sizeof list);
  size_t start = b->size;
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(list + at) + 1) {
    char key[300];
    if (!is_packed_xattr(list + at) || b->size - start > XATTRS_MAX) continue;
    ssize_t n = fgetxattr(fd, list + at, value, sizeof value);
    if (n < 0) continue;
    snprintf(key, sizeof key, "SCHILY.xattr.%s", list + at);
    pax_bytes(b, key, value, (size_t)n);
  }
}

static void emit_pax(struct bytes *b) {
  struct tar_header h = {0};
  snprintf(h.name, sizeof h.name, "PaxHeaders/%lu", entries);
  number(h.mode, sizeof h.mode, 0644);
  number(h.uid, sizeof h.uid, 0);
  number(h.gid, sizeof h.gid, 0);
  number(h.size, sizeof h.size, (int64_t)b->size);
  number(h.mtime, sizeof h.mtime, 0);
  h.type = 'x';
  emit_header(&h);
  emit(b->data, b->size);
  pad(b->size);
}

/* The name under which this file was already written; NULL: none, and `path` is remembered. */
static const char *known_name(const struct stat *st, const char *path) {
  struct known_link **bucket = &links[st->st_ino % LINKS_ROOM];
  for (struct known_link *l = *bucket; l; l = l->next)
    if (l->inode == st->st_ino && l->device == st->st_dev) return l->path;
  struct known_link *l = malloc(sizeof *l);
  if (!l) _exit(70);
  *l = (struct known_link){st->st_dev, st->st_ino, strdup(path), *bucket};
  *bucket = l;
  return NULL;
}

/* `fd`: the open file or directory, for its extended attributes; -1: leave them out. */
static void emit_entry(const char *path, const struct stat *st, char type, const char *link, uint64_t size, int fd) {
  struct tar_header h = {0};
  struct bytes pax = {0};
  char owner[64], group[64];
  account_name(&names, false, st->st_uid, owner);
  account_name(&names, true, st->st_gid, group);
  if (strlen(path) > sizeof h.name) pax_record(&pax, "path", path);
  if (strlen(link) > sizeof h.link) pax_record(&pax, "linkpath", link);
  if (st->st_mtim.tv_nsec != 0 || st->st_mtim.tv_sec < 0) pax_time(&pax, "mtime", st->st_mtim);
  if (strlen(owner) >= sizeof h.uname) pax_record(&pax, "uname", owner);
  if (strlen(group) >= sizeof h.gname) pax_record(&pax, "gname", group);
  if (fd >= 0) pax_xattrs(&pax, fd);
  if (pax.size > 0) emit_pax(&pax);
  free(pax.data);
  memcpy(h.name, path, strnlen(path, sizeof h.name));
  memcpy(h.link, link, strnlen(link, sizeof h.link));
  number(h.mode, sizeof h.mode, st->st_mode & 07777);
  number(h.uid, sizeof h.uid, st->st_uid);
  number(h.gid, sizeof h.gid, st->st_gid);
  number(h.size, sizeof h.size, (int64_t)size);
  number(h.mtime, sizeof h.mtime, st->st_mtime);
  h.type = type;
  memcpy(h.uname, owner, strnlen(owner, sizeof h.uname - 1));
  memcpy(h.gname, group, strnlen(group, sizeof h.gname - 1));
  if (type == '3' || type == '4') {
    number(h.major, sizeof h.major, major(st->st_rdev));
    number(h.minor, sizeof h.minor, minor(st->st_rdev));
  }
  emit_header(&h);
  entries++;
}

/* Writes exactly the announced size: cuts a file that grows meanwhile, and adds zeros to one that shrinks. */
static void emit_data(int fd, uint64_t size) {
  static uint8_t buffer[OUT_ROOM];
  uint64_t left = size;
  bool ended = false;
  while (left > 0) {
    size_t want = left < sizeof buffer ? (size_t)left : sizeof buffer;
    ssize_t n = ended ? 0 : read(fd, buffer, want);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      ended = true;
      memset(buffer, 0, want);
      n = (ssize_t)want;
    }
    emit(buffer, (size_t)n);
    left -= (uint64_t)n;
  }
  pad(size);
}

/* Path of the directory that the walk is in, with a final slash and a NUL that is not counted. */
static struct bytes path;

static void path_push(const char *name, const char *end) {
  put_raw(&path, name, strlen(name));
  put_raw(&path, end, strlen(end) + 1);
  path.size--;
}

static void path_cut(size_t size) {
  path.size = size;
  path.data[size] = 0;
}

static void pack_file(int at, const char *name, const char *text) {
  struct stat st;
  int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    skipped++;
  } else {
    emit_entry(text, &st, '0', "", (uint64_t)st.st_size, fd);
    emit_data(fd, (uint64_t)st.st_size);
  }
  if (fd >= 0) close(fd);
}

/* Packs an entry that is no directory. */
static void pack_leaf(int at, const char *name, const struct stat *st) {
  const char *text = (const char *)path.data;
  const char *first = st->st_nlink > 1 && !S_ISSOCK(st->st_mode) ? known_name(st, text) : NULL;
  if (first) {
    emit_entry(text, st, '1', first, 0, -1);
  } else if (S_ISREG(st->st_mode)) {
    pack_file(at, name, text);
  } else if (S_ISLNK(st->st_mode)) {
    char target[4096];
    ssize_t n = readlinkat(at, name, target, sizeof target - 1);
    if (n < 0) return;
    target[n] = 0;
    emit_entry(text, st, '2', target, 0, -1);
  } else if (S_ISSOCK(st->st_mode)) {
    skipped++;
  } else {
    emit_entry(text, st, S_ISFIFO(st->st_mode) ? '6' : S_ISCHR(st->st_mode) ? '3' : '4', "", 0, -1);
  }
}

static int pack_entry(void *context, int at, const char *name, unsigned char type) {
  (void)context, (void)type;
  struct stat st;
  if (is_temporary_name(name) || fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return WALK_ON; /* gone meanwhile */
  if (S_ISDIR(st.st_mode)) return WALK_INTO;
  size_t size = path.size;
  path_push(name, "");
  pack_leaf(at, name, &st);
  path_cut(size);
  return WALK_ON;
}

static int pack_enter(void *context, int at, const char *name) {
  (void)context;
  struct stat st;
  path_push(name, "/"); /* as tar writes directories */
  if (fstat(at, &st) != 0) return errno;
  emit_entry((const char *)path.data, &st, '5', "", 0, at);
  return WALK_ON;
}

static int pack_leave(void *context, int at, const char *name) {
  (void)context, (void)at;
  path_cut(path.size - strlen(name) - 1);
  return 0;
}

static int pack_missed(void *context, const char *name, int error) {
  (void)context, (void)name;
  if (error != ENOENT) skipped++;
  return 0;
}

static const struct visitor packer = {pack_entry, pack_enter, pack_leave, pack_missed};

int tar_create(const char *directory) {
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed(errno, directory);
  put_raw(&path, "", 1);
  path.size--;
  int error = walk_tree(fd, &packer, NULL);
  if (error) return failed(error, (const char *)path.data);
  static const uint8_t end[2 * TAR_BLOCK];
  emit(end, sizeof end);
  flush();
  dprintf(2, "done %lu %lu\n", entries, skipped);
  return 0;
}
