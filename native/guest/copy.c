#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "directory.h"
#include "walk.h"
#include "wire.h"

#define COPY_CHUNK 262144

static int copy_data(int from, int to) {
  void *buffer = malloc(COPY_CHUNK);
  int error = buffer ? 0 : ENOMEM;
  while (!error) {
    ssize_t n = read(from, buffer, COPY_CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    if (!write_all(to, buffer, (size_t)n)) error = errno;
  }
  free(buffer);
  return error;
}

static int copy_file(int from, const char *from_name, int to, const char *to_name) {
  int in = openat(from, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (in < 0) return errno;
  int out = openat(to, to_name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
  int error = out < 0 ? errno : copy_data(in, out);
  close(in);
  if (out >= 0 && close(out) != 0 && !error) error = errno;
  return error;
}

static int copy_link(int from, const char *from_name, int to, const char *to_name) {
  char target[4096];
  ssize_t n = readlinkat(from, from_name, target, sizeof target - 1);
  if (n < 0) return errno;
  target[n] = 0;
  return symlinkat(target, to, to_name) == 0 ? 0 : errno;
}

/* What is no directory. A socket lives by the process that listens on it, which would not move with it: EXDEV. */
static int copy_leaf(int from, const char *from_name, int to, const char *to_name, const struct stat *st) {
  int error = 0;
  if (S_ISREG(st->st_mode)) error = copy_file(from, from_name, to, to_name);
  else if (S_ISLNK(st->st_mode)) error = copy_link(from, from_name, to, to_name);
  else if (S_ISSOCK(st->st_mode)) error = EXDEV;
  else if (mknodat(to, to_name, st->st_mode, st->st_rdev) != 0) error = errno;
  if (error) return error;
  if (fchownat(to, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (!S_ISLNK(st->st_mode) && fchmodat(to, to_name, st->st_mode & 07777, 0) != 0) return errno;
  struct timespec times[2] = {st->st_atim, st->st_mtim};
  utimensat(to, to_name, times, AT_SYMLINK_NOFOLLOW);
  return 0;
}

/* A directory gets its owner, mode and times when all that belongs in it is there. */
static int finish_directory(int from, int to) {
  struct stat st;
  if (fstat(from, &st) != 0 || fchown(to, st.st_uid, st.st_gid) != 0 || fchmod(to, st.st_mode & 07777) != 0) return errno;
  struct timespec times[2] = {st.st_atim, st.st_mtim};
  futimens(to, times);
  return 0;
}

/* The visitor's context is the trail on the other side. */
static int copy_entry(void *context, int at, const char *name, unsigned char type) {
  (void)type;
  struct trail *to = context;
  struct stat st;
  if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? 0 : errno;
  if (S_ISDIR(st.st_mode)) return WALK_INTO;
  if (S_ISSOCK(st.st_mode)) return 0;
  int error = copy_leaf(at, name, to->fd, name, &st);
  return error == ENOENT ? 0 : error; /* gone meanwhile */
}

static int copy_enter(void *context, int at, const char *name) {
  (void)at;
  struct trail *to = context;
  if (mkdirat(to->fd, name, 0700) != 0) return errno;
  return trail_down(to, name);
}

static int copy_leave(void *context, int at, const char *name) {
  (void)name;
  struct trail *to = context;
  int error = finish_directory(at, to->fd);
  return error ? error : trail_up(to);
}

static int copy_missed(void *context, const char *name, int error) {
  (void)context, (void)name;
  return error == ENOENT ? 0 : error;
}

static const struct visitor copier = {copy_entry, copy_enter, copy_leave, copy_missed};

int copy_tree(int from, const char *from_name, int to, const char *to_name) {
  struct stat st;
  if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (!S_ISDIR(st.st_mode)) return copy_leaf(from, from_name, to, to_name, &st);
  int in = open_directory_itself(from, from_name);
  if (in < 0) return errno;
  int out = mkdirat(to, to_name, 0700) == 0 ? open_directory_itself(to, to_name) : -1;
  if (out < 0) {
    int error = errno;
    close(in);
    return error;
  }
  int kept = fcntl(in, F_DUPFD_CLOEXEC, 0), error = kept < 0 ? errno : 0;
  struct trail trail;
  trail_start(&trail, out);
  if (error) close(in);
  else error = walk_tree(in, &copier, &trail);
  if (!error) error = finish_directory(kept, trail.fd);
  if (kept >= 0) close(kept);
  trail_end(&trail);
  return error;
}
