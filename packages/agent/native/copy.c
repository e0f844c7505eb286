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
#include "wire.h"

#define COPY_CHUNK 262144
#define DEPTH_MAX 1000

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

static int copy_entry(int from, const char *from_name, int to, const char *to_name, int depth);

static int copy_directory(int from, const char *from_name, int to, const char *to_name, int depth) {
  if (depth > DEPTH_MAX) return ELOOP;
  if (mkdirat(to, to_name, 0700) != 0) return errno;
  int in = open_directory_itself(from, from_name);
  int out = open_directory_itself(to, to_name);
  DIR *dir = in < 0 ? NULL : fdopendir(in);
  int error = out < 0 || !dir ? errno : 0;
  for (struct dirent *entry; !error && (entry = readdir(dir));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    error = copy_entry(in, entry->d_name, out, entry->d_name, depth + 1);
    if (error == ENOENT) error = 0; /* gone meanwhile */
  }
  if (dir) closedir(dir);
  else if (in >= 0) close(in);
  if (out >= 0) close(out);
  return error;
}

static int copy_entry(int from, const char *from_name, int to, const char *to_name, int depth) {
  struct stat st;
  if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  int error = 0;
  if (S_ISDIR(st.st_mode)) error = copy_directory(from, from_name, to, to_name, depth);
  else if (S_ISREG(st.st_mode)) error = copy_file(from, from_name, to, to_name);
  else if (S_ISLNK(st.st_mode)) error = copy_link(from, from_name, to, to_name);
  else if (S_ISSOCK(st.st_mode)) return 0;
  else if (mknodat(to, to_name, st.st_mode, st.st_rdev) != 0) error = errno;
  if (error) return error;
  if (fchownat(to, to_name, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (!S_ISLNK(st.st_mode) && fchmodat(to, to_name, st.st_mode & 07777, 0) != 0) return errno;
  struct timespec times[2] = {st.st_atim, st.st_mtim};
  utimensat(to, to_name, times, AT_SYMLINK_NOFOLLOW);
  return 0;
}

int copy_tree(int from, const char *from_name, int to, const char *to_name) {
  return copy_entry(from, from_name, to, to_name, 0);
}
