#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "account.h"
#include "directory.h"
#include "tar.h"
#include "wire.h"

#define OUT_ROOM 65536
#define LINKS_ROOM 65536 /* buckets for files with several names */

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

/* Octal as long as it fits, then the base-256 form that every current tar reads. */
static void number(char *field, size_t room, uint64_t value) {
  if (value < 1ull << (3 * (room - 1))) {
    char text[16];
    snprintf(text, sizeof text, "%0*llo", (int)room - 1, (unsigned long long)value);
    memcpy(field, text, room - 1);
    return;
  }
  for (size_t i = room; i-- > 1; value >>= 8) field[i] = (char)(value & 0xff);
  field[0] = (char)0x80;
}

static void emit_header(struct tar_header *h) {
  memcpy(h->magic, "ustar\0" "00", 8);
  memset(h->checksum, ' ', sizeof h->checksum);
  unsigned sum = 0;
  for (size_t i = 0; i < sizeof *h; i++) sum += ((unsigned char *)h)[i];
  char text[16];
  snprintf(text, sizeof text, "%06o", sum);
  memcpy(h->checksum, text, 7); /* NUL included; a space follows */
  emit(h, sizeof *h);
}

/* Adds one record "size key=value\n", whose size counts itself. */
static void pax_record(struct bytes *b, const char *key, const char *value) {
  size_t body = strlen(key) + strlen(value) + 3, size = body, digits;
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
  put_raw(b, value, strlen(value));
  put_raw(b, "\n", 1);
}

static void emit_pax(const char *path, const char *link) {
  struct bytes b = {0};
  if (strlen(path) > 100) pax_record(&b, "path", path);
  if (strlen(link) > 100) pax_record(&b, "linkpath", link);
  if (b.size == 0) return;
  struct tar_header h = {0};
  snprintf(h.name, sizeof h.name, "PaxHeaders/%lu", entries);
  number(h.mode, sizeof h.mode, 0644);
  number(h.uid, sizeof h.uid, 0);
  number(h.gid, sizeof h.gid, 0);
  number(h.size, sizeof h.size, b.size);
  number(h.mtime, sizeof h.mtime, 0);
  h.type = 'x';
  emit_header(&h);
  emit(b.data, b.size);
  pad(b.size);
  free(b.data);
}

/* The first name of a file that was already written under another one, or NULL (and it is remembered). */
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

static void emit_entry(const char *path, const struct stat *st, char type, const char *link, uint64_t size) {
  emit_pax(path, link);
  struct tar_header h = {0};
  memcpy(h.name, path, strnlen(path, sizeof h.name));
  memcpy(h.link, link, strnlen(link, sizeof h.link));
  number(h.mode, sizeof h.mode, st->st_mode & 07777);
  number(h.uid, sizeof h.uid, st->st_uid);
  number(h.gid, sizeof h.gid, st->st_gid);
  number(h.size, sizeof h.size, size);
  number(h.mtime, sizeof h.mtime, st->st_mtime > 0 ? (uint64_t)st->st_mtime : 0);
  h.type = type;
  char name[64];
  account_name(&names, false, st->st_uid, name);
  memcpy(h.uname, name, strnlen(name, 31));
  account_name(&names, true, st->st_gid, name);
  memcpy(h.gname, name, strnlen(name, 31));
  if (type == '3' || type == '4') {
    number(h.major, sizeof h.major, major(st->st_rdev));
    number(h.minor, sizeof h.minor, minor(st->st_rdev));
  }
  emit_header(&h);
  entries++;
}

/* Exactly the announced size, whatever the file does meanwhile: cut when it grows, zeros when it shrinks. */
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

static void walk(int fd, struct bytes *path);

static void add(int at, const char *name, struct bytes *path) {
  struct stat st;
  if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return; /* gone meanwhile */
  const char *text = (const char *)path->data;
  if (!S_ISDIR(st.st_mode) && st.st_nlink > 1) {
    const char *first = known_name(&st, text);
    if (first) {
      emit_entry(text, &st, '1', first, 0);
      return;
    }
  }
  if (S_ISDIR(st.st_mode)) {
    int fd = open_directory_itself(at, name);
    if (fd < 0) {
      skipped++;
      return;
    }
    path->size--; /* "name/" as tar writes directories */
    put_raw(path, "/", 2);
    emit_entry((const char *)path->data, &st, '5', "", 0);
    walk(fd, path);
  } else if (S_ISREG(st.st_mode)) {
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
      if (fd >= 0) close(fd);
      skipped++;
      return;
    }
    emit_entry(text, &st, '0', "", (uint64_t)st.st_size);
    emit_data(fd, (uint64_t)st.st_size);
    close(fd);
  } else if (S_ISLNK(st.st_mode)) {
    char target[4096];
    ssize_t n = readlinkat(at, name, target, sizeof target - 1);
    if (n < 0) return;
    target[n] = 0;
    emit_entry(text, &st, '2', target, 0);
  } else if (S_ISSOCK(st.st_mode)) {
    skipped++;
  } else {
    emit_entry(text, &st, S_ISFIFO(st.st_mode) ? '6' : S_ISCHR(st.st_mode) ? '3' : '4', "", 0);
  }
}

/* Writes everything in `fd`, which it closes. `path` is what precedes the names, with its NUL. */
static void walk(int fd, struct bytes *path) {
  DIR *dir = fdopendir(fd);
  if (!dir) {
    close(fd);
    skipped++;
    return;
  }
  size_t size = path->size;
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    path->size = size - 1;
    put_raw(path, entry->d_name, strlen(entry->d_name) + 1);
    add(dirfd(dir), entry->d_name, path);
  }
  path->size = size;
  closedir(dir);
}

int tar_create(const char *directory) {
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed(errno, directory);
  struct bytes path = {0};
  put_raw(&path, "", 1);
  walk(fd, &path);
  static const uint8_t end[2 * TAR_BLOCK];
  emit(end, sizeof end);
  flush();
  dprintf(2, "done %lu %lu\n", entries, skipped);
  return 0;
}
