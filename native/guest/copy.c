#include "copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "directory.h"
#include "identity.h"
#include "temporary.h"
#include "walk.h"
#include "wire.h"

#define COPY_CHUNK 262144
#define BLOCK 4096 /* a block of zeros becomes a hole */
#define XATTRS_MAX 65536

int copy_bytes(int from, int to, off_t *written) {
  void *buffer = malloc(COPY_CHUNK);
  int error = buffer ? 0 : ENOMEM;
  *written = 0;
  if (lseek(from, 0, SEEK_SET) != 0) error = errno;
  while (!error) {
    ssize_t n = read(from, buffer, COPY_CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    for (ssize_t done = 0; done < n && !error;) {
      ssize_t m = write(to, (char *)buffer + done, (size_t)(n - done));
      if (m < 0 && errno == EINTR) continue;
      if (m <= 0) error = m < 0 ? errno : EIO;
      else *written += m, done += m;
    }
  }
  free(buffer);
  return error;
}

static bool is_zero(const char *block, size_t size) { return block[0] == 0 && memcmp(block, block + 1, size - 1) == 0; }

/* Writes the blocks that are not zeros. */
static int write_dense(int to, const char *data, size_t size, off_t offset) {
  for (size_t at = 0; at < size;) {
    size_t end = at;
    while (end < size && !is_zero(data + end, size - end < BLOCK ? size - end : BLOCK)) end += size - end < BLOCK ? size - end : BLOCK;
    for (size_t done = at; done < end;) {
      ssize_t n = pwrite(to, data + done, end - done, offset + (off_t)done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return n < 0 ? errno : EIO;
      done += (size_t)n;
    }
    at = end;
    if (at < size) at += size - at < BLOCK ? size - at : BLOCK;
  }
  return 0;
}

/* Copies holes as holes: those that the file system reports, and blocks of zeros where it reports none (gVisor). */
static int copy_sparse(int from, int to, off_t size) {
  char *buffer = malloc(COPY_CHUNK);
  int error = buffer ? 0 : ENOMEM;
  off_t offset = 0;
  while (!error) {
    off_t data = lseek(from, offset, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data > offset) offset = data;
    ssize_t n = pread(from, buffer, COPY_CHUNK, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    error = write_dense(to, buffer, (size_t)n, offset);
    offset += n;
  }
  free(buffer);
  if (!error && ftruncate(to, offset > size ? offset : size) != 0) error = errno;
  return error;
}

static int copy_data(int from, int to) {
  struct stat st;
  off_t written;
  if (ioctl(to, FICLONE, from) == 0) return 0;
  if (fstat(from, &st) != 0) return errno;
  /* gVisor counts blocks of 512 bytes as if no file had holes: such a count tells nothing, so look for zeros there too. */
  bool may_be_sparse = st.st_blocks <= (st.st_size + 511) / 512;
  return may_be_sparse ? copy_sparse(from, to, st.st_size) : copy_bytes(from, to, &written);
}

/* Copies the extended attributes that system and identity allow. Only a full disk is an error. */
static int copy_xattrs(int from, int to) {
  char names[XATTRS_MAX];
  ssize_t size = flistxattr(from, names, sizeof names);
  if (size <= 0) return 0;
  char *value = malloc(XATTRS_MAX);
  int error = value ? 0 : ENOMEM;
  for (ssize_t at = 0; at < size && !error; at += (ssize_t)strlen(names + at) + 1) {
    ssize_t n = fgetxattr(from, names + at, value, XATTRS_MAX);
    if (n >= 0 && fsetxattr(to, names + at, value, (size_t)n, 0) != 0 && (errno == ENOSPC || errno == EDQUOT)) error = errno;
  }
  free(value);
  return error;
}

/* Keeps owner and group. A user who may not set the owner becomes the owner, and keeps the group if he is in it. */
static int keep_owner(int at, const char *name, const struct stat *st) {
  int flags = AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH);
  if (fchownat(at, name, st->st_uid, st->st_gid, flags) == 0) return 0;
  if (!identity_is_limited() || errno != EPERM) return errno;
  return fchownat(at, name, (uid_t)-1, st->st_gid, flags) == 0 || errno == EPERM ? 0 : errno;
}

/* Sets owner, mode, attributes and times. The owner first, because its change clears setuid and capabilities. */
static int dress(int from, int to, const struct stat *st) {
  int error = keep_owner(to, "", st);
  struct stat now;
  if (!error && fstat(to, &now) != 0) error = errno;
  /* A copy must not run with the rights of another user or group than the original. */
  mode_t bits = st->st_mode & 07777;
  if (!error && now.st_uid != st->st_uid) bits &= ~(mode_t)S_ISUID;
  if (!error && now.st_gid != st->st_gid) bits &= ~(mode_t)S_ISGID;
  if (!error && fchmod(to, bits) != 0) error = errno;
  if (!error) error = copy_xattrs(from, to);
  struct timespec times[2] = {st->st_atim, st->st_mtim};
  if (!error) futimens(to, times);
  return error;
}

static int copy_file(int from, const char *from_name, int to, const char *to_name) {
  struct stat st;
  int in = openat(from, from_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), out = -1;
  if (in < 0) return errno;
  int error = fstat(in, &st) != 0 ? errno : !S_ISREG(st.st_mode) ? EINVAL : 0;
  if (!error && (out = openat(to, to_name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0) error = errno;
  if (!error) error = copy_data(in, out);
  if (!error) error = dress(in, out, &st);
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

/* Copies an entry that is no directory. A socket belongs to the process that listens on it and cannot be copied: EXDEV. */
static int copy_leaf(int from, const char *from_name, int to, const char *to_name, const struct stat *st) {
  int error = 0;
  if (S_ISREG(st->st_mode)) return copy_file(from, from_name, to, to_name);
  if (S_ISLNK(st->st_mode)) error = copy_link(from, from_name, to, to_name);
  else if (S_ISSOCK(st->st_mode)) error = EXDEV;
  else if (mknodat(to, to_name, st->st_mode, st->st_rdev) != 0) error = errno;
  if (error) return error;
  error = keep_owner(to, to_name, st);
  if (error) return error;
  if (!S_ISLNK(st->st_mode) && fchmodat(to, to_name, st->st_mode & 07777, 0) != 0) return errno;
  struct timespec times[2] = {st->st_atim, st->st_mtim};
  utimensat(to, to_name, times, AT_SYMLINK_NOFOLLOW);
  return 0;
}

/* Sets owner, mode and times of a directory, after its content is complete. */
static int finish_directory(int from, int to) {
  struct stat st;
  return fstat(from, &st) != 0 ? errno : dress(from, to, &st);
}

/* The visitor's context is the trail in the copy. */
static int copy_entry(void *context, int at, const char *name, unsigned char type) {
  (void)type;
  struct trail *to = context;
  struct stat st;
  if (is_temporary_name(name)) return WALK_ON;
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
