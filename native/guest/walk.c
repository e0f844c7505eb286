#include "walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "directory.h"

#define ENTRIES_ROOM 32768 /* bytes of entries read at once */

bool is_dots(const char *name) { return name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0)); }

static void *grown(void *items, size_t *room, size_t item) {
  *room = *room ? *room * 2 : 16;
  items = realloc(items, *room * item);
  if (!items) _exit(70);
  return items;
}

void trail_start(struct trail *t, int fd) { *t = (struct trail){.fd = fd}; }

int trail_down(struct trail *t, const char *name) {
  struct stat here;
  if (fstat(t->fd, &here) != 0) return errno;
  int next = open_directory_itself(t->fd, name);
  if (next < 0) return errno;
  if (t->depth == t->room) t->levels = grown(t->levels, &t->room, sizeof *t->levels);
  bool keep = t->depth < TRAIL_OPEN_MAX - 1;
  t->levels[t->depth++] = (struct trail_level){keep ? t->fd : -1, here.st_dev, here.st_ino};
  if (!keep) close(t->fd);
  t->fd = next;
  return 0;
}

int trail_up(struct trail *t) {
  struct trail_level *level = &t->levels[t->depth - 1];
  struct stat st;
  int parent = level->fd;
  if (parent < 0) {
    parent = openat(t->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return errno;
    if (fstat(parent, &st) != 0 || st.st_dev != level->device || st.st_ino != level->inode) {
      close(parent);
      return EBUSY;
    }
  }
  close(t->fd);
  t->fd = parent;
  t->depth--;
  return 0;
}

void trail_end(struct trail *t) {
  close(t->fd);
  while (t->depth > 0) {
    int fd = t->levels[--t->depth].fd;
    if (fd >= 0) close(fd);
  }
  free(t->levels);
  *t = (struct trail){.fd = -1};
}

struct linux_dirent64 {
  uint64_t d_ino;
  int64_t d_off;
  unsigned short d_reclen;
  unsigned char d_type;
  char d_name[];
};

/* One directory on the way: offsets in `names` of its first name and of the next to enter. */
struct names_level {
  size_t first, next;
};

struct walk {
  const struct visitor *visitor;
  void *context;
  struct trail trail;
  struct bytes names;
  struct names_level *levels;
  size_t depth, room;
  char *entries;
};

/* Calls `entry` for all entries of the current directory, and remembers those to enter. */
static int read_entries(struct walk *w, const char *name) {
  if (w->depth == w->room) w->levels = grown(w->levels, &w->room, sizeof *w->levels);
  w->levels[w->depth++] = (struct names_level){w->names.size, w->names.size};
  for (;;) {
    long n = syscall(SYS_getdents64, w->trail.fd, w->entries, ENTRIES_ROOM);
    if (n < 0 && errno != ENOENT) return w->visitor->missed(w->context, name, errno);
    if (n <= 0) return 0;
    for (long at = 0; at < n;) {
      struct linux_dirent64 *entry = (void *)(w->entries + at);
      at += entry->d_reclen;
      if (is_dots(entry->d_name) || strlen(entry->d_name) > NAME_MAX) continue;
      int result = w->visitor->entry(w->context, w->trail.fd, entry->d_name, entry->d_type);
      if (result > 0) return result;
      if (result != WALK_INTO) continue;
      if (w->names.size > WALK_NAMES_MAX) return E2BIG;
      put_raw(&w->names, entry->d_name, strlen(entry->d_name) + 1);
    }
  }
}

/* Copies the next name to enter in this directory; false: none. A copy, because the entered directory adds names and may move them. */
static bool next_name(struct walk *w, char name[NAME_MAX + 1]) {
  struct names_level *level = &w->levels[w->depth - 1];
  if (level->next >= w->names.size) return false;
  const char *at = (const char *)w->names.data + level->next;
  size_t size = strlen(at) + 1;
  level->next += size;
  memcpy(name, at, size);
  return true;
}

static int step(struct walk *w, const char *name) {
  int error = trail_down(&w->trail, name);
  if (error) return w->visitor->missed(w->context, name, error);
  error = w->visitor->enter(w->context, w->trail.fd, name);
  return error ? error : read_entries(w, name);
}

/* Leaves the current directory. */
static int step_back(struct walk *w) {
  w->names.size = w->levels[--w->depth].first;
  /* Its name is right before the next name of the level above. */
  struct names_level *level = &w->levels[w->depth - 1];
  size_t end = level->next - 1, start = end;
  while (start > level->first && w->names.data[start - 1] != 0) start--;
  int error = w->visitor->leave(w->context, w->trail.fd, (const char *)w->names.data + start);
  return error ? error : trail_up(&w->trail);
}

int walk_tree(int fd, const struct visitor *visitor, void *context) {
  struct walk w = {.visitor = visitor, .context = context, .entries = malloc(ENTRIES_ROOM)};
  if (!w.entries) _exit(70);
  trail_start(&w.trail, fd);
  int error = read_entries(&w, ".");
  char name[NAME_MAX + 1];
  while (!error) {
    if (next_name(&w, name)) error = step(&w, name);
    else if (w.depth == 1) break;
    else error = step_back(&w);
  }
  trail_end(&w.trail);
  free(w.names.data);
  free(w.levels);
  free(w.entries);
  return error;
}
