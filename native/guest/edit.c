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
#include "identity.h"
#include "remove-tree.h"
#include "replacement.h"
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
  return stat(at, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : EEXIST; /* another program made it meanwhile */
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

int remove_entry(const char *path, bool recursive) {
  struct stat st;
  if (lstat(path, &st) != 0) return errno;
  if (!S_ISDIR(st.st_mode)) return unlink(path) == 0 ? 0 : errno;
  if (rmdir(path) == 0) return 0;
  if (errno == EEXIST) errno = ENOTEMPTY;
  if (errno != ENOTEMPTY || !recursive) return errno;
  return remove_tree(AT_FDCWD, path);
}

/* A user may not rename a directory into another one without write permission on it, which a finished copy may lack: set it meanwhile. */
static int rename_copy(int place, const char *temporary, int at, const char *name) {
  struct stat st;
  if (renameat(place, temporary, at, name) == 0) return 0;
  if (errno != EACCES || fstatat(place, temporary, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(st.st_mode) || (st.st_mode & S_IWUSR))
    return errno;
  if (fchmodat(place, temporary, (st.st_mode & 07777) | S_IWUSR, 0) != 0 || renameat(place, temporary, at, name) != 0) return errno;
  return fchmodat(at, name, st.st_mode & 07777, 0) == 0 ? 0 : errno;
}

/* Copies `source` to `place` and renames the copy to `name` in `at`. */
static int copy_into(int place, const char *source, int at, const char *name) {
  char temporary[TEMPORARY_ROOM];
  struct stat st, there;
  temporary_name(temporary);
  int error = copy_tree(AT_FDCWD, source, place, temporary);
  if (!error && fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstatat(place, temporary, &st, AT_SYMLINK_NOFOLLOW) == 0)
    replacement_note(&st);
  if (!error) error = rename_copy(place, temporary, at, name);
  if (!error) return 0;
  /* A user may be unable to remove the own copy. In the hidden place nothing can have replaced it, so root may remove it. */
  const struct identity *identity = identity_current();
  if (place != at) identity_assume(NULL);
  if (unlinkat(place, temporary, 0) != 0) remove_tree(place, temporary);
  identity_assume(identity);
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
  if (errno == EINVAL || errno == EBUSY) *subject = SUBJECT_PATH; /* a move into itself, or of a mount point */
  if (errno != EXDEV) return errno;
  /* Another file system: copy to a temporary place on the destination's, then rename. */
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

static int strip_slashes(const char *path, char out[4096]) {
  size_t size = strlen(path);
  if (size >= 4096) return ENAMETOOLONG;
  memcpy(out, path, size + 1);
  while (size > 1 && out[size - 1] == '/') out[--size] = 0;
  return 0;
}

int copy_path(const char *source, const char *destination, bool recursive, enum subject *subject) {
  struct stat st, there;
  char from[4096], plain[4096], to[4096];
  *subject = SUBJECT_PATH;
  if (stat(source, &st) != 0) return errno;
  if (S_ISDIR(st.st_mode) && !recursive) return EISDIR;
  int error = strip_slashes(source, plain);
  if (!error) error = follow_links(plain, from);
  if (error) return error;
  *subject = SUBJECT_DESTINATION;
  bool exists = lstat(destination, &there) == 0;
  if (!exists && errno != ENOENT) return errno;
  if (exists && S_ISDIR(there.st_mode)) return EEXIST;
  if (exists && S_ISDIR(st.st_mode)) return ENOTDIR;
  const char *directory, *name;
  error = strip_slashes(destination, to);
  if (!error && !S_ISDIR(st.st_mode) && strlen(to) != strlen(destination)) error = ENOTDIR;
  if (!error) error = split_path(to, &directory, &name);
  if (error) return error;
  int at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) return errno;
  if (identity_is_limited() && faccessat(at, ".", W_OK | X_OK, AT_EACCESS) != 0) error = errno;
  int place = temporary_place(at);
  if (!error) {
    error = copy_into(place, from, at, name);
    if (error == EXDEV && place != at && !S_ISSOCK(st.st_mode)) error = copy_into(at, from, at, name);
    /* Failures to read are about the source; a full disk, or a file that may not be replaced, about the destination. */
    if (error == EACCES || error == EXDEV || error == ENXIO || error == EIO || error == ENOENT) *subject = SUBJECT_PATH;
  }
  close(at);
  return error;
}
