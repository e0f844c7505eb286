#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "directory.h"
#include "tar.h"

static int destination = -1;
static struct stat destination_st;

#define KEPT_MAX 32 /* first directories below the destination that stay open */

/* The place of the last entry. Most entries are beside or below the one before, so a tree of any depth is walked only once. */
static struct {
  char *path;
  size_t size;
  int depth, fd; /* its last directory; the first ones are in `kept` too */
  int kept[KEPT_MAX];
} last = {.fd = -1};

void tar_place_start(int fd) {
  destination = fd;
  if (fstat(fd, &destination_st) != 0) tar_failed(errno, "");
}

char *tar_clean(char *path) {
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
  return path;
}

/* Whether a directory, the target of a link, is the destination or below it. Goes up to the root, which is its own parent. */
static bool is_beneath(int fd) {
  int at = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  bool beneath = false;
  struct stat st, before = {0};
  for (bool first = true; at >= 0 && fstat(at, &st) == 0; first = false) {
    beneath = st.st_dev == destination_st.st_dev && st.st_ino == destination_st.st_ino;
    if (beneath || (!first && st.st_dev == before.st_dev && st.st_ino == before.st_ino)) break;
    before = st;
    int parent = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    close(at);
    at = parent;
  }
  if (at >= 0) close(at);
  return beneath;
}

/* tar_open_directory with open flags; O_PATH is enough to pass through. */
static int pass_through(int at, const char *name, int flags) {
  int held = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (held < 0) return -1;
  struct stat st;
  if (fstat(held, &st) != 0) {
    /* errno is set. */
  } else if (S_ISDIR(st.st_mode)) {
    if (flags & O_PATH) return held;
    int fd = openat(held, ".", flags | O_DIRECTORY | O_CLOEXEC);
    int error = errno;
    close(held);
    errno = error;
    return fd;
  } else if (S_ISLNK(st.st_mode)) {
    /* A link that existed before: the archive's own links are made last. */
    close(held);
    int fd = openat(at, name, flags | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || is_beneath(fd)) return fd;
    close(fd);
    errno = EXDEV;
    return -1;
  } else {
    errno = ENOTDIR;
  }
  int error = errno;
  close(held);
  errno = error;
  return -1;
}

int tar_open_directory(int at, const char *name) { return pass_through(at, name, O_RDONLY); }

/* How many directories `path` shares with the last place; sets `*size` to the length of their path. */
static int shared_depth(const char *path, size_t path_size, size_t *size) {
  int depth = 0;
  *size = 0;
  for (size_t i = 0; last.fd >= 0 && i <= path_size && i <= last.size; i++) {
    bool ends = i == path_size || path[i] == '/', last_ends = i == last.size || last.path[i] == '/';
    if (ends != last_ends || (!ends && path[i] != last.path[i])) break;
    if (!ends || i == 0) continue;
    depth++;
    *size = i;
  }
  return depth;
}

static void forget_below(int depth) {
  if (last.fd >= 0 && last.depth > depth && last.depth > KEPT_MAX) close(last.fd);
  for (int i = last.depth < KEPT_MAX ? last.depth : KEPT_MAX; i > depth; i--) close(last.kept[i - 1]);
}

/* Goes back to the deepest open directory on the way to `path`. Returns the length of its path. */
static size_t go_back(const char *path, size_t path_size) {
  size_t size;
  int depth = shared_depth(path, path_size, &size);
  if (last.fd >= 0 && depth == last.depth) return size;
  if (depth > KEPT_MAX) {
    depth = KEPT_MAX;
    size = 0;
    for (int i = 0; i < depth; i++) size += strcspn(path + size + (i > 0), "/") + (i > 0);
  }
  forget_below(depth);
  last.depth = depth;
  last.fd = depth == 0 ? destination : last.kept[depth - 1];
  return size;
}

static int enter(const char *name, bool make) {
  int next = pass_through(last.fd, name, O_PATH);
  if (next < 0 && errno == ENOENT && make && mkdirat(last.fd, name, 0755) == 0) next = pass_through(last.fd, name, O_PATH);
  if (next < 0) return errno;
  if (last.depth > KEPT_MAX) close(last.fd);
  if (last.depth < KEPT_MAX) last.kept[last.depth] = next;
  last.fd = next;
  last.depth++;
  return 0;
}

int tar_place(const char *path, bool make, int *at, const char **name) {
  const char *slash = strrchr(path, '/');
  size_t size = slash ? (size_t)(slash - path) : 0;
  *name = slash ? slash + 1 : path;
  char *copy = strndup(path, size);
  if (!copy) tar_failed(ENOMEM, path);
  size_t done = go_back(copy, size);
  int error = 0;
  while (!error && done < size) {
    char component[NAME_MAX + 1];
    size_t start = done + (done > 0), length = strcspn(copy + start, "/");
    if (length > NAME_MAX) {
      error = ENAMETOOLONG;
      break;
    }
    memcpy(component, copy + start, length);
    component[length] = 0;
    error = enter(component, make);
    if (!error) done = start + length;
  }
  /* Remember the part that was reached. */
  copy[done] = 0;
  free(last.path);
  last.path = copy;
  last.size = done;
  *at = last.fd;
  return error;
}
