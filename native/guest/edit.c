#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "copy.h"
#include "directory.h"
#include "files.h"
#include "remove-tree.h"
#include "temporary.h"
#include "walk.h"

#define LINKS_MAX 40

int make_directories(const char *path) {
  char at[4096];
  size_t size = strlen(path);
  if (size >= sizeof at) return ENAMETOOLONG;
  memcpy(at, path, size + 1);
  while (size > 1 && at[size - 1] == '/') at[--size] = 0;
  struct stat st;
  if (stat(at, &st) == 0) return S_ISDIR(st.st_mode) ? 0 : EEXIST;
  for (char *slash = at + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    int r = mkdir(at, 0755);
    int error = r == 0 || errno == EEXIST ? 0 : errno;
    *slash = '/';
    if (error) return error;
  }
  if (mkdir(at, 0755) == 0) return 0;
  if (errno != EEXIST) return errno;
  return stat(at, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : EEXIST; /* somebody was faster */
}

int follow_links(const char *path, char out[4096]) {
  if (strlen(path) >= 4096) return ENAMETOOLONG;
  strcpy(out, path);
  for (int i = 0; i < LINKS_MAX; i++) {
    struct stat st;
    if (lstat(out, &st) != 0) return errno == ENOENT ? 0 : errno;
    if (!S_ISLNK(st.st_mode)) return 0;
    char target[4096], joined[8192];
    ssize_t n = readlink(out, target, sizeof target - 1);
    if (n < 0) return errno;
    target[n] = 0;
    char *slash = strrchr(out, '/');
    if (target[0] == '/') snprintf(joined, sizeof joined, "%s", target);
    else snprintf(joined, sizeof joined, "%.*s/%s", (int)(slash - out), out, target);
    if (strlen(joined) >= 4096) return ENAMETOOLONG;
    strcpy(out, joined);
  }
  return ELOOP;
}

/* The directory part and the last name of a path. */
static int split_path(char *path, const char **directory, const char **name) {
  char *slash = strrchr(path, '/');
  if (!slash || slash[1] == 0) return EISDIR;
  *name = slash + 1;
  if (strcmp(*name, ".") == 0 || strcmp(*name, "..") == 0) return EISDIR;
  *slash = 0;
  *directory = slash == path ? "/" : path;
  return 0;
}

/* What a write makes. */
struct content {
  mode_t mode;
  const struct stat *old; /* NULL: there was nothing */
  const uint8_t *data;
  size_t size;
};

/* As the old one's; a new one's group is that of a directory which hands its own on. */
static int set_owner(int fd, int at, const struct stat *old) {
  struct stat directory;
  if (old) return (old->st_uid == 0 && old->st_gid == 0) || fchown(fd, old->st_uid, old->st_gid) == 0 ? 0 : errno;
  if (fstat(at, &directory) != 0 || !(directory.st_mode & S_ISGID)) return 0;
  return fchown(fd, (uid_t)-1, directory.st_gid) == 0 ? 0 : errno;
}

/* Fills a new file in `place` and names it in `at`; the old one is replaced in one step. */
static int replace_from(int place, int at, const char *name, const struct content *content, struct stat *st) {
  char temporary[TEMPORARY_ROOM];
  temporary_name(temporary);
  int fd = openat(place, temporary, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  int error = 0;
  if (!write_all(fd, content->data, content->size)) error = errno ? errno : EIO;
  if (!error) error = set_owner(fd, at, content->old);
  if (!error && fchmod(fd, content->mode) != 0) error = errno; /* after chown, which clears setuid */
  if (!error && fstat(fd, st) != 0) error = errno;
  if (close(fd) != 0 && !error) error = errno;
  if (!error && renameat(place, temporary, at, name) != 0) error = errno;
  if (error) unlinkat(place, temporary, 0);
  return error;
}

static int replace(int at, const char *name, const struct content *content, struct stat *st) {
  int place = temporary_place(at), error = replace_from(place, at, name, content, st);
  /* Another mount of the same file system. */
  return error == EXDEV && place != at ? replace_from(at, at, name, content, st) : error;
}

int write_file(const char *path, int mode, const uint8_t *data, size_t size, struct stat *st) {
  char target[4096];
  int error = follow_links(path, target);
  if (error == ENOTDIR) return ENOTDIR;
  if (error) return error;
  const char *directory, *name;
  error = split_path(target, &directory, &name);
  if (error) return error;
  int at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (at < 0 && errno == ENOENT) {
    error = make_directories(directory);
    if (error) return error == EEXIST ? ENOTDIR : error;
    at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  if (at < 0) return errno;
  struct stat old;
  bool exists = fstatat(at, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
  if (exists && S_ISDIR(old.st_mode)) error = EISDIR;
  else if (exists && !S_ISREG(old.st_mode)) error = EINVAL;
  if (!error) {
    mode_t bits = mode >= 0 ? (mode_t)mode : exists ? old.st_mode & 07777 : 0644;
    error = replace(at, name, &(struct content){bits, exists ? &old : NULL, data, size}, st);
  }
  close(at);
  return error;
}

int remove_entry(const char *path, bool recursive) {
  struct stat st;
  if (lstat(path, &st) != 0) return errno;
  if (!S_ISDIR(st.st_mode)) return unlink(path) == 0 ? 0 : errno;
  if (rmdir(path) == 0) return 0;
  if (errno == EEXIST) errno = ENOTEMPTY;
  if (errno != ENOTEMPTY || !recursive) return errno;
  return remove_tree(AT_FDCWD, path);
}

/* Copies it to `place` and gives it its name in `at`. */
static int copy_into(int place, const char *source, int at, const char *name) {
  char temporary[TEMPORARY_ROOM];
  temporary_name(temporary);
  int error = copy_tree(AT_FDCWD, source, place, temporary);
  if (!error && renameat(place, temporary, at, name) != 0) error = errno;
  if (error && unlinkat(place, temporary, 0) != 0) remove_tree(place, temporary);
  return error;
}

int move_entry(const char *source, const char *destination, enum subject *subject) {
  struct stat st, there;
  *subject = SUBJECT_PATH;
  if (lstat(source, &st) != 0) return errno;
  *subject = SUBJECT_DESTINATION;
  bool exists = lstat(destination, &there) == 0;
  if (!exists && errno != ENOENT) return errno;
  if (exists && S_ISDIR(there.st_mode)) return EEXIST;
  if (rename(source, destination) == 0) return 0;
  if (errno == EINVAL || errno == EBUSY) *subject = SUBJECT_PATH; /* into itself, or a mount point */
  if (errno != EXDEV) return errno;
  /* /tmp is another file system than the rest: copied beside the destination, then put in place in one step. */
  if (exists && S_ISDIR(st.st_mode)) return ENOTDIR;
  char target[4096];
  if (strlen(destination) >= sizeof target) return ENAMETOOLONG;
  strcpy(target, destination);
  size_t size = strlen(target);
  while (size > 1 && target[size - 1] == '/') target[--size] = 0;
  const char *directory, *name;
  int error = split_path(target, &directory, &name);
  if (error) return error;
  int at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) return errno;
  int place = temporary_place(at);
  error = copy_into(place, source, at, name);
  if (error == EXDEV && place != at) error = copy_into(at, source, at, name);
  if (error == EXDEV) *subject = SUBJECT_PATH; /* a socket */
  if (!error) {
    *subject = SUBJECT_PATH;
    error = remove_entry(source, true);
  }
  close(at);
  return error;
}
