#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "files.h"
#include "temporary.h"
#include "walk.h"

#define BATCH 32768 /* payload after which a frame of entries is sent */
#define PATH_ROOM 4096

enum kind { KIND_FILE = 1, KIND_DIRECTORY, KIND_SYMLINK, KIND_FIFO, KIND_SOCKET, KIND_DEVICE };

static enum kind kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return KIND_FILE;
    case S_IFDIR: return KIND_DIRECTORY;
    case S_IFLNK: return KIND_SYMLINK;
    case S_IFIFO: return KIND_FIFO;
    case S_IFSOCK: return KIND_SOCKET;
    default: return KIND_DEVICE;
  }
}

void put_entry(struct bytes *b, const char *path, const struct stat *st, enum entry_attributes attributes, struct account_names *names) {
  char owner[64], group[64], target[PATH_ROOM] = "";
  account_name(names, false, st->st_uid, owner);
  account_name(names, true, st->st_gid, group);
  if (S_ISLNK(st->st_mode)) {
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
  }
  put_u8(b, kind_of(st->st_mode));
  put_u32(b, st->st_mode & 07777);
  put_u64(b, (uint64_t)st->st_size);
  put_u64(b, (uint64_t)((int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000));
  put_string(b, path);
  put_string(b, owner);
  put_string(b, group);
  put_string(b, target);
  if (attributes == NO_ATTRIBUTES) put_u32(b, 0);
  else put_attributes(b, path, attributes == OF_TARGET);
}

/* The smallest paths seen so far, in a heap with the largest on top. Memory is bounded by the limit even for millions of entries. */
struct listing {
  char **paths;
  uint32_t count, limit;
  bool truncated, failed;
};

static void sift_down(struct listing *l, uint32_t at) {
  for (;;) {
    uint32_t largest = at, left = 2 * at + 1, right = left + 1;
    if (left < l->count && strcmp(l->paths[left], l->paths[largest]) > 0) largest = left;
    if (right < l->count && strcmp(l->paths[right], l->paths[largest]) > 0) largest = right;
    if (largest == at) return;
    char *swap = l->paths[at];
    l->paths[at] = l->paths[largest];
    l->paths[largest] = swap;
    at = largest;
  }
}

static void offer(struct listing *l, const char *path) {
  if (l->count == l->limit) {
    l->truncated = true;
    if (l->limit == 0 || strcmp(path, l->paths[0]) >= 0) return;
    free(l->paths[0]);
    l->paths[0] = strdup(path);
    if (!l->paths[0]) _exit(70);
    sift_down(l, 0);
    return;
  }
  char *copy = strdup(path);
  if (!copy) _exit(70);
  uint32_t at = l->count++;
  l->paths[at] = copy;
  while (at > 0 && strcmp(l->paths[(at - 1) / 2], l->paths[at]) < 0) {
    char *swap = l->paths[at];
    l->paths[at] = l->paths[(at - 1) / 2];
    l->paths[(at - 1) / 2] = swap;
    at = (at - 1) / 2;
  }
}

static int open_directory(int at, const char *name, DIR **out) {
  int fd = open_directory_itself(at, name);
  if (fd < 0) return errno;
  *out = fdopendir(fd);
  if (*out) return 0;
  int error = errno;
  close(fd);
  return error;
}

static bool is_directory(int at, const char *name, unsigned char type) {
  if (type != DT_UNKNOWN) return type == DT_DIR;
  struct stat st;
  return fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static bool has_entries(int at, const char *name) {
  DIR *dir;
  if (open_directory(at, name, &dir) != 0) return false;
  bool found = false;
  for (struct dirent *entry; !found && (entry = readdir(dir));) found = !is_dots(entry->d_name) && !is_temporary_name(entry->d_name);
  closedir(dir);
  return found;
}

/* `path`: the directory that the walk is in, without a final slash. */
struct listing_walk {
  struct listing *listing;
  char path[PATH_ROOM];
  size_t size;
  uint32_t depth; /* levels that are still shown */
};

/* Whether nothing below `path` can be in the answer any more: every path below a directory sorts after it. */
static bool all_too_large(const struct listing *l, const char *path) {
  return l->count == l->limit && l->truncated && (l->limit == 0 || strcmp(path, l->paths[0]) > 0);
}

static int list_entry(void *context, int at, const char *name, unsigned char type) {
  struct listing_walk *w = context;
  struct listing *l = w->listing;
  size_t name_size = strlen(name);
  if (is_temporary_name(name)) return WALK_ON;
  if (w->size + name_size + 1 >= PATH_ROOM) { /* no request could name it */
    l->truncated = true;
    return WALK_ON;
  }
  w->path[w->size] = '/';
  memcpy(w->path + w->size + 1, name, name_size + 1);
  offer(l, w->path);
  bool enter = false;
  if (is_directory(at, name, type)) {
    enter = w->depth > 1 && !all_too_large(l, w->path);
    if (w->depth <= 1 && !l->truncated) l->truncated = has_entries(at, name);
  }
  w->path[w->size] = 0;
  return enter ? WALK_INTO : WALK_ON;
}

static int list_enter(void *context, int at, const char *name) {
  (void)at;
  struct listing_walk *w = context;
  size_t name_size = strlen(name);
  w->path[w->size] = '/';
  memcpy(w->path + w->size + 1, name, name_size + 1);
  w->size += name_size + 1;
  w->depth--;
  return 0;
}

static int list_leave(void *context, int at, const char *name) {
  (void)at;
  struct listing_walk *w = context;
  w->size -= strlen(name) + 1;
  w->path[w->size] = 0;
  w->depth++;
  return 0;
}

/* The directory is gone or was replaced meanwhile. */
static int list_missed(void *context, const char *name, int error) {
  (void)context, (void)name, (void)error;
  return 0;
}

static const struct visitor lister = {list_entry, list_enter, list_leave, list_missed};

static int by_path(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int list_entries(uint32_t id, const char *path, uint32_t depth, uint32_t limit, enum entry_attributes attributes, bool *truncated) {
  struct stat st;
  /* Neither exists nor stat nor list follow a final symlink (spec/contract.md, files). */
  if (lstat(path, &st) != 0) return errno;
  if (!S_ISDIR(st.st_mode)) return ENOTDIR;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  if (limit > 1000000) limit = 1000000;
  struct listing l = {.limit = limit, .paths = calloc((size_t)limit + 1, sizeof(char *))};
  struct listing_walk w = {.listing = &l, .size = strlen(path), .depth = depth};
  int error = 0;
  if (!l.paths) _exit(70);
  if (w.size >= sizeof w.path) {
    close(fd);
    error = ENAMETOOLONG;
  } else {
    memcpy(w.path, path, w.size + 1);
    while (w.size > 0 && w.path[w.size - 1] == '/') w.path[--w.size] = 0;
    /* If the tree is moved during the listing (EBUSY) or has too many directories (E2BIG), answer the entries seen so far. */
    if (walk_tree(fd, &lister, &w) != 0) l.truncated = true;
  }
  if (!error) {
    qsort(l.paths, l.count, sizeof *l.paths, by_path);
    struct account_names names = {0};
    struct bytes b = {0};
    size_t start = 0;
    for (uint32_t i = 0; i < l.count; i++) {
      if (lstat(l.paths[i], &st) != 0) continue; /* gone meanwhile */
      if (b.size == 0) start = frame_open(&b, F_ENTRIES, 0, id);
      put_entry(&b, l.paths[i], &st, attributes, &names);
      if (b.size < BATCH) continue;
      frame_close(&b, start);
      files_send(&b);
    }
    if (b.size > 0) {
      frame_close(&b, start);
      files_send(&b);
    }
    free(b.data);
    account_names_free(&names);
  }
  for (uint32_t i = 0; i < l.count; i++) free(l.paths[i]);
  free(l.paths);
  *truncated = l.truncated;
  return error;
}
