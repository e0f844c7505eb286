#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "identity.h"
#include "replacement.h"
#include "temporary.h"
#include "walk.h"
#include "watch-tree.h"

#define MASK                                                                                                                  \
  (IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | \
   IN_EXCL_UNLINK)
#define READ_ROOM 65536
#define READS_MAX 8 /* reads of one watch in a row, before the other watches and the agent get their turn */
#define SEEN_MAX 65536 /* bytes of names that a scan reported, and that the kernel may still report */
#define PAIR_MS 50     /* time for the second half of a rename to come */
#define THREAD_STACK 262144

enum type { TYPE_FILE = 1, TYPE_DIRECTORY, TYPE_SYMLINK };

struct watch {
  struct watch *next;
  uint32_t id;
  int fd;
  bool recursive, acts;
  struct identity identity;
  char path[4096]; /* as in the request, without a final slash */
  char only[256];  /* the one name in the directory that is watched; empty: the whole directory */
  bool only_exists;
  struct watch_tree tree;
  dev_t left_out[2]; /* not watched: procfs, sysfs */
  struct bytes queue, seen;
  size_t last; /* offset of the newest event in the queue */
  bool may_send, lost, over;
  /* The first half of a rename. */
  struct {
    bool is_set, is_directory;
    uint32_t cookie;
    int wd;
    struct timespec since;
    char name[256], path[4096];
  } moved;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static struct watch *watches, *ended; /* ended: still to destroy, which is slow in the kernel and so done without the lock */
static int epoll = -1, watch_count;

static struct watch *find(uint32_t id) {
  struct watch *w = watches;
  while (w && w->id != id) w = w->next;
  return w;
}

static void forget_wd(void *context, int wd) { inotify_rm_watch(((struct watch *)context)->fd, wd); }
static void forget_nothing(void *context, int wd) { (void)context, (void)wd; }

static struct watched *root_of(const struct watch *w) {
  struct watched *one = w->tree.first;
  while (one && one->parent) one = one->parent;
  return one;
}

static void destroy(struct watch *w) {
  if (w->tree.first) watch_tree_remove(&w->tree, root_of(w), forget_nothing, w);
  if (w->fd >= 0) close(w->fd);
  free(w->queue.data);
  free(w->seen.data);
  free(w);
}

static void remove_watch(struct watch *w) {
  struct watch **at = &watches;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  watch_count--;
  epoll_ctl(epoll, EPOLL_CTL_DEL, w->fd, NULL);
  w->next = ended;
  ended = w;
}

/* Releases the lock, then destroys the watches that ended. */
static void unlock(void) {
  struct watch *list = ended;
  ended = NULL;
  pthread_mutex_unlock(&lock);
  for (struct watch *next; list; list = next) {
    next = list->next;
    destroy(list);
  }
}

/* Sends the waiting events if the agent takes them; ends a watch that is over. */
static void send_queue(struct watch *w) {
  if (!w->may_send || (w->queue.size == 0 && !w->lost && !w->over)) return;
  struct bytes b = {0};
  if (w->queue.size > 0 || w->lost) {
    size_t start = frame_open(&b, F_EVENTS, 0, w->id);
    put_raw(&b, w->queue.data, w->queue.size);
    if (w->lost) {
      put_u8(&b, EVENT_OVERFLOW);
      put_u8(&b, TYPE_DIRECTORY);
      put_string(&b, w->path);
      put_string(&b, "");
    }
    frame_close(&b, start);
    w->queue.size = 0;
    w->may_send = w->lost = false;
  } else {
    frame_close(&b, frame_open(&b, F_DONE, 0, w->id));
  }
  bool is_last = w->over && w->may_send;
  files_send(&b);
  free(b.data);
  if (is_last) remove_watch(w);
}

static void report(struct watch *w, enum watch_event event, enum type type, const char *path, const char *from) {
  if (w->queue.size > WATCH_QUEUE_MAX) {
    w->lost = true;
    return;
  }
  size_t start = w->queue.size, last = w->last;
  put_u8(&w->queue, (uint8_t)event);
  put_u8(&w->queue, (uint8_t)type);
  put_string(&w->queue, path);
  put_string(&w->queue, from);
  w->last = start;
  /* Merge equal MODIFIED events in a row: a program may write a file piece by piece. */
  size_t size = w->queue.size - start;
  bool again =
      event == EVENT_MODIFIED && start > 0 && start - last == size && memcmp(w->queue.data + last, w->queue.data + start, size) == 0;
  if (!again) return;
  w->queue.size = start;
  w->last = last;
}

static enum type type_of(mode_t mode) { return S_ISDIR(mode) ? TYPE_DIRECTORY : S_ISLNK(mode) ? TYPE_SYMLINK : TYPE_FILE; }

/* The type of the entry; if it is gone, the type that the kernel reported. */
static enum type type_at(const char *path, bool is_directory) {
  struct stat st;
  return lstat(path, &st) == 0 ? type_of(st.st_mode) : is_directory ? TYPE_DIRECTORY : TYPE_FILE;
}

/* Watches the open directory `fd`. Named by the thread's own working directory, because the kernel takes no descriptor here. */
static int add_watch(struct watch *w, int fd, struct watched *parent, const char *name, struct watched **out) {
  if (w->tree.count >= WATCH_DIRECTORIES_MAX) return EMFILE;
  if (fchdir(fd) != 0) return errno;
  int wd = inotify_add_watch(w->fd, ".", MASK), error = wd < 0 ? errno : 0;
  if (chdir("/") != 0) _exit(70);
  if (error) return error == ENOSPC || error == ENOMEM ? EMFILE : error;
  *out = watch_tree_put(&w->tree, wd, parent, name);
  return 0;
}

/* Remembers a name that a scan reported in a directory just watched: the kernel's event for the name may still come. */
static void remember_seen(struct watch *w, int wd, const char *name) {
  if (w->seen.size > SEEN_MAX) return;
  put_u32(&w->seen, (uint32_t)wd);
  put_raw(&w->seen, name, strlen(name) + 1);
}

static bool was_seen(const struct watch *w, int wd, const char *name) {
  for (size_t at = 0; at < w->seen.size;) {
    uint32_t one;
    memcpy(&one, w->seen.data + at, 4);
    const char *known = (const char *)w->seen.data + at + 4;
    if (one == (uint32_t)wd && strcmp(known, name) == 0) return true;
    at += 4 + strlen(known) + 1;
  }
  return false;
}

/* A walk through a tree that is not watched yet. */
struct scan {
  struct watch *watch;
  struct watched *at; /* the directory that the walk is in; NULL: it could not be watched */
  struct watched **above;
  size_t depth, room;
  bool reports;
};

static int scan_entry(void *context, int at, const char *name, unsigned char type) {
  struct scan *s = context;
  struct watch *w = s->watch;
  struct stat st;
  char path[4096];
  if (is_temporary_name(name) || !s->at) return WALK_ON;
  bool known = type != DT_UNKNOWN && type != DT_DIR && !s->reports;
  if (known || fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return WALK_ON;
  if (s->reports && watch_tree_path(s->at, w->path, name, path)) {
    report(w, EVENT_CREATED, type_of(st.st_mode), path, "");
    remember_seen(w, s->at->wd, name);
  }
  if (!S_ISDIR(st.st_mode) || st.st_dev == w->left_out[0] || st.st_dev == w->left_out[1]) return WALK_ON;
  return WALK_INTO;
}

static int scan_enter(void *context, int at, const char *name) {
  struct scan *s = context;
  if (s->depth == s->room) {
    s->room = s->room ? s->room * 2 : 16;
    s->above = realloc(s->above, s->room * sizeof(struct watched *));
    if (!s->above) _exit(70);
  }
  s->above[s->depth++] = s->at;
  struct watched *one = NULL;
  int error = s->at ? add_watch(s->watch, at, s->at, name, &one) : 0;
  s->at = one;
  /* A directory that may not be read is left out; too many directories are an error. */
  return error == EMFILE ? error : 0;
}

static int scan_leave(void *context, int at, const char *name) {
  (void)at, (void)name;
  struct scan *s = context;
  s->at = s->above[--s->depth];
  return 0;
}

static int scan_missed(void *context, const char *name, int error) {
  (void)context, (void)name, (void)error;
  return 0;
}

static const struct visitor scanner = {scan_entry, scan_enter, scan_leave, scan_missed};

/* Watches everything below the open directory, which is watched already. Closes it. */
static int scan_tree(struct watch *w, int fd, struct watched *root, bool reports) {
  struct scan s = {.watch = w, .at = root, .reports = reports};
  int error = walk_tree(fd, &scanner, &s);
  free(s.above);
  return error;
}

/* Watches a directory that has come into the tree, and reports its content. */
static void scan_new(struct watch *w, const char *path, struct watched *parent, const char *name) {
  struct watched *one;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  int error = add_watch(w, fd, parent, name, &one);
  if (error) close(fd);
  else error = scan_tree(w, fd, one, true);
  if (error == EMFILE || error == E2BIG) w->lost = true;
}

static void report_moved_away(struct watch *w) {
  if (!w->moved.is_set) return;
  w->moved.is_set = false;
  struct watched *parent = watch_tree_find(&w->tree, w->moved.wd);
  struct watched *one = parent && w->moved.is_directory ? watch_tree_child(&w->tree, parent, w->moved.name) : NULL;
  if (one) watch_tree_remove(&w->tree, one, forget_wd, w);
  report(w, EVENT_DELETED, w->moved.is_directory ? TYPE_DIRECTORY : TYPE_FILE, w->moved.path, "");
}

static void note_moved_away(struct watch *w, const struct inotify_event *e, const char *path) {
  report_moved_away(w);
  w->moved.is_set = true;
  w->moved.is_directory = e->mask & IN_ISDIR;
  w->moved.cookie = e->cookie;
  w->moved.wd = e->wd;
  clock_gettime(CLOCK_MONOTONIC, &w->moved.since);
  strcpy(w->moved.name, e->name);
  strcpy(w->moved.path, path);
}

/* A rename into the tree: from elsewhere in it, from outside, or from the place of our temporary files. */
static void report_moved_here(struct watch *w, const struct inotify_event *e, struct watched *at, const char *path) {
  bool is_directory = e->mask & IN_ISDIR;
  struct stat st;
  bool there = lstat(path, &st) == 0;
  enum type type = there ? type_of(st.st_mode) : is_directory ? TYPE_DIRECTORY : TYPE_FILE;
  if (w->moved.is_set && w->moved.cookie == e->cookie) {
    w->moved.is_set = false;
    struct watched *parent = watch_tree_find(&w->tree, w->moved.wd);
    struct watched *one = parent && is_directory ? watch_tree_child(&w->tree, parent, w->moved.name) : NULL;
    if (one) watch_tree_move(one, at, e->name);
    report(w, EVENT_RENAMED, type, path, w->moved.path);
    if (is_directory && w->recursive && !one) scan_new(w, path, at, e->name);
    return;
  }
  report(w, there && replacement_known(&st) ? EVENT_MODIFIED : EVENT_CREATED, type, path, "");
  if (is_directory && w->recursive) scan_new(w, path, at, e->name);
}

/* The root is gone or was moved: the watch ends. */
static void end_with_root(struct watch *w) {
  if (w->over) return;
  report_moved_away(w);
  if (!*w->only) report(w, EVENT_DELETED, TYPE_DIRECTORY, w->path, "");
  else if (w->only_exists) report(w, EVENT_DELETED, TYPE_FILE, w->path, "");
  w->over = true;
}

/* An event of a watch of one name: any file that gets this name counts. */
static void take_only(struct watch *w, const struct inotify_event *e) {
  if (strcmp(e->name, w->only) != 0) return;
  bool came = e->mask & (IN_CREATE | IN_MOVED_TO), went = e->mask & (IN_DELETE | IN_MOVED_FROM);
  enum watch_event event = came                  ? (w->only_exists ? EVENT_MODIFIED : EVENT_CREATED)
                           : went                ? EVENT_DELETED
                           : e->mask & IN_ATTRIB ? EVENT_ATTRIBUTES
                                                 : EVENT_MODIFIED;
  w->only_exists = !went;
  report(w, event, e->mask & IN_ISDIR ? TYPE_DIRECTORY : TYPE_FILE, w->path, "");
}

/* Whether an event is below a directory whose rename has only its first half: the second half would have come before it. */
static bool is_of_moved(const struct watch *w, const struct watched *at) {
  if (!w->moved.is_set || !w->moved.is_directory) return false;
  const struct watched *parent = watch_tree_find(&w->tree, w->moved.wd),
                       *one = parent ? watch_tree_child(&w->tree, parent, w->moved.name) : NULL;
  while (at && at != one) at = at->parent;
  return at != NULL;
}

static void take_event(struct watch *w, const struct inotify_event *e) {
  if (e->mask & IN_Q_OVERFLOW) {
    w->lost = true;
    return;
  }
  /* IN_MOVE_SELF comes between the two halves of a rename. */
  if (!(e->mask & IN_MOVE_SELF) && is_of_moved(w, watch_tree_find(&w->tree, e->wd))) report_moved_away(w);
  struct watched *at = watch_tree_find(&w->tree, e->wd);
  if (!at) return;
  if (e->mask & (IN_IGNORED | IN_UNMOUNT)) {
    if (!at->parent) end_with_root(w);
    watch_tree_remove(&w->tree, at, forget_wd, w);
    return;
  }
  if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF)) {
    if (!at->parent) end_with_root(w);
    return;
  }
  if (e->len == 0) {
    /* About the directory itself, which its parent reports too. */
    if (!at->parent && !*w->only && (e->mask & IN_ATTRIB)) report(w, EVENT_ATTRIBUTES, TYPE_DIRECTORY, w->path, "");
    return;
  }
  char path[4096];
  if (is_temporary_name(e->name) || w->over) return;
  if (*w->only) return take_only(w, e);
  if (strlen(e->name) >= sizeof w->moved.name || !watch_tree_path(at, w->path, e->name, path)) return;
  bool is_directory = e->mask & IN_ISDIR;
  if (e->mask & IN_MOVED_FROM) return note_moved_away(w, e, path);
  if (e->mask & IN_MOVED_TO) return report_moved_here(w, e, at, path);
  if (e->mask & IN_CREATE) {
    if (was_seen(w, e->wd, e->name)) return;
    report(w, EVENT_CREATED, type_at(path, is_directory), path, "");
    if (is_directory && w->recursive) scan_new(w, path, at, e->name);
  } else if (e->mask & IN_DELETE) {
    report(w, EVENT_DELETED, is_directory ? TYPE_DIRECTORY : TYPE_FILE, path, "");
  } else {
    report(w, e->mask & IN_ATTRIB ? EVENT_ATTRIBUTES : EVENT_MODIFIED, type_at(path, is_directory), path, "");
  }
}

/* After lost events: watches directories that came meanwhile. */
static void scan_again(struct watch *w) {
  int fd = open(w->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct watched *root = root_of(w);
  if (fd >= 0 && root) scan_tree(w, fd, root, false);
  else if (fd >= 0) close(fd);
}

static void read_events(struct watch *w) {
  static char buffer[READ_ROOM] __attribute__((aligned(8)));
  bool overflowed = false;
  ssize_t n = 0;
  if (w->acts) identity_assume(&w->identity);
  for (int i = 0; i < READS_MAX && (n = read(w->fd, buffer, sizeof buffer)) > 0; i++) {
    for (ssize_t at = 0; at < n;) {
      const struct inotify_event *e = (const void *)(buffer + at);
      at += (ssize_t)(sizeof *e + e->len);
      overflowed = overflowed || (e->mask & IN_Q_OVERFLOW);
      take_event(w, e);
    }
  }
  if (n <= 0) w->seen.size = 0; /* the kernel has no more events waiting */
  if (overflowed && w->recursive && !w->over) scan_again(w);
  identity_assume(NULL);
}

/* Reports renames whose second half did not come. Returns the time until the next is due in ms; -1: none waits. */
static int report_unpaired(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int wait = -1;
  for (struct watch *w = watches, *next; w; w = next) {
    next = w->next;
    if (!w->moved.is_set) continue;
    int64_t waited = (now.tv_sec - w->moved.since.tv_sec) * 1000 + (now.tv_nsec - w->moved.since.tv_nsec) / 1000000;
    if (waited < PAIR_MS) {
      if (wait < 0 || PAIR_MS - waited < wait) wait = (int)(PAIR_MS - waited);
      continue;
    }
    report_moved_away(w);
    send_queue(w);
  }
  return wait;
}

_Noreturn static void *serve_watches(void *unused) {
  (void)unused;
  if (unshare(CLONE_FS) != 0) _exit(70);
  for (int wait = -1;;) {
    struct epoll_event ready[16];
    int count = epoll_wait(epoll, ready, 16, wait);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
      struct watch *w = find(ready[i].data.u32);
      if (!w) continue;
      read_events(w);
      send_queue(w);
    }
    wait = report_unpaired();
    unlock();
  }
}

static int start_thread(void) {
  if (epoll >= 0) return 0;
  int fd = epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return errno;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, THREAD_STACK);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  epoll = fd;
  int error = pthread_create(&thread, &attributes, serve_watches, NULL);
  pthread_attr_destroy(&attributes);
  if (!error) return 0;
  close(fd);
  epoll = -1;
  return error;
}

static dev_t device_of(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 ? st.st_dev : 0;
}

/* A file is watched through its directory, so that a file that replaces it is watched too. */
static int open_root(struct watch *w, const char *path) {
  struct stat st;
  char real[4096];
  if (stat(path, &st) != 0) return errno;
  if (S_ISDIR(st.st_mode)) return 0;
  if (w->path[strlen(path)] != 0 || strlen(path) != strlen(w->path)) return ENOTDIR;
  int error = follow_links(path, real);
  if (error) return error;
  char *slash = strrchr(real, '/');
  if (strlen(slash + 1) >= sizeof w->only) return ENAMETOOLONG;
  strcpy(w->only, slash + 1);
  w->only_exists = true;
  slash[slash == real ? 1 : 0] = 0;
  int fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  struct watched *root;
  error = add_watch(w, fd, NULL, "", &root);
  close(fd);
  return error;
}

static int prepare(struct watch *w, const char *path) {
  size_t size = strlen(path);
  if (size >= sizeof w->path) return ENAMETOOLONG;
  strcpy(w->path, path);
  while (size > 0 && w->path[size - 1] == '/') w->path[--size] = 0;
  w->left_out[0] = device_of("/proc");
  w->left_out[1] = device_of("/sys");
  w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (w->fd < 0) return errno;
  int error = open_root(w, path);
  if (error || *w->only) return error;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  struct watched *root;
  error = add_watch(w, fd, NULL, "", &root);
  if (error || !w->recursive) close(fd);
  else error = scan_tree(w, fd, root, false);
  return error;
}

static void send_watching(uint32_t id, const struct watch *w) {
  struct bytes b = {0};
  size_t start = frame_open(&b, F_WATCHING, 0, id);
  put_u8(&b, *w->only ? TYPE_FILE : TYPE_DIRECTORY);
  frame_close(&b, start);
  files_send(&b);
  free(b.data);
}

int watch_begin(uint32_t id, const char *path, bool recursive) {
  static _Thread_local bool has_own_directory;
  if (!has_own_directory && unshare(CLONE_FS) != 0) return errno;
  has_own_directory = true;
  struct watch *w = calloc(1, sizeof *w);
  if (!w) _exit(70);
  w->id = id;
  w->fd = -1;
  w->recursive = recursive;
  w->may_send = true;
  w->acts = identity_current() != NULL;
  if (w->acts) w->identity = *identity_current();
  int error = prepare(w, path);
  pthread_mutex_lock(&lock);
  if (!error && (watch_count >= WATCHES_MAX || find(id))) error = EMFILE;
  if (!error) error = start_thread();
  if (!error) {
    w->next = watches;
    watches = w;
    watch_count++;
    send_watching(id, w);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = id};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, w->fd, &event) != 0) _exit(70);
  }
  unlock();
  if (error) destroy(w);
  return error;
}

void watch_more(uint32_t id) {
  pthread_mutex_lock(&lock);
  struct watch *w = find(id);
  if (w) {
    w->may_send = true;
    send_queue(w);
  }
  unlock();
}

void watch_end(uint32_t id) {
  pthread_mutex_lock(&lock);
  struct watch *w = find(id);
  if (w) remove_watch(w);
  unlock();
}
