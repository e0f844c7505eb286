#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot-id.h"
#include "identity.h"

#define THREADS_MAX 64
#define THREAD_STACK 262144
#define HANDLES_MAX 4096
#define PREFETCH READ_MAX /* sent with the answer to OPEN: most files need one round trip */

struct request {
  struct frame frame;
  struct request *next;
};

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER, send_lock = PTHREAD_MUTEX_INITIALIZER,
                       handle_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_ready = PTHREAD_COND_INITIALIZER;
static struct request *queue_head, **queue_tail = &queue_head;
static int threads, idle, waiting;
static int agent_fd;
static const struct process_limit *process_limit;
static int handles[HANDLES_MAX]; /* descriptor + 1; 0: free. A handle is its index + 1. */

void files_send(struct bytes *frame) {
  pthread_mutex_lock(&send_lock);
  bool sent = write_all(agent_fd, frame->data, frame->size);
  pthread_mutex_unlock(&send_lock);
  if (!sent) pthread_exit(NULL); /* the agent is gone; the main thread notices too and ends everything */
  frame->size = 0;
}

static void send_failure(uint32_t id, int error, enum subject subject) {
  struct bytes b = {0};
  size_t start = frame_open(&b, F_FAILED, subject, id);
  put_u32(&b, (uint32_t)error);
  frame_close(&b, start);
  files_send(&b);
  free(b.data);
}

static void send_done(uint32_t id, uint8_t flags) {
  struct bytes b = {0};
  frame_close(&b, frame_open(&b, F_DONE, flags, id));
  files_send(&b);
  free(b.data);
}

static void send_entry_with(uint32_t id, const char *path, const struct stat *st, enum entry_attributes attributes) {
  struct account_names names = {0};
  struct bytes b = {0};
  size_t start = frame_open(&b, F_ENTRIES, 0, id);
  put_entry(&b, path, st, attributes, &names);
  frame_close(&b, start);
  frame_close(&b, frame_open(&b, F_DONE, 0, id));
  files_send(&b);
  account_names_free(&names);
  free(b.data);
}

static void send_entry(uint32_t id, const char *path, const struct stat *st) { send_entry_with(id, path, st, NO_ATTRIBUTES); }

static uint32_t handle_keep(int fd) {
  pthread_mutex_lock(&handle_lock);
  uint32_t handle = 0;
  for (int i = 0; i < HANDLES_MAX && !handle; i++) {
    if (handles[i]) continue;
    handles[i] = fd + 1;
    handle = (uint32_t)i + 1;
  }
  pthread_mutex_unlock(&handle_lock);
  return handle;
}

static int handle_fd(uint32_t handle) { return handle >= 1 && handle <= HANDLES_MAX ? handles[handle - 1] - 1 : -1; }

static void handle_close(uint32_t handle) {
  pthread_mutex_lock(&handle_lock);
  int fd = handle_fd(handle);
  if (fd >= 0) handles[handle - 1] = 0;
  pthread_mutex_unlock(&handle_lock);
  if (fd >= 0) close(fd);
}

/* Reads until `want` or the end; pread returns short on some file systems. */
static ssize_t read_fully(int fd, uint8_t *to, size_t want, off_t offset) {
  size_t have = 0;
  while (have < want) {
    ssize_t n = pread(fd, to + have, want - have, offset + (off_t)have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return have > 0 ? (ssize_t)have : -1;
    if (n == 0) break;
    have += (size_t)n;
  }
  return (ssize_t)have;
}

#define OPENED_HEAD 64

/* Identifies this content of a file; zeros for a file whose content the system makes up (its size is 0). */
static void put_version(struct bytes *b, const struct stat *st, bool made_up) {
  struct stat none = {0};
  if (made_up) st = &none;
  put_u64(b, st->st_dev);
  put_u64(b, st->st_ino);
  put_u64(b, (uint64_t)st->st_mtim.tv_sec);
  put_u32(b, (uint32_t)st->st_mtim.tv_nsec);
  put_u64(b, (uint64_t)st->st_ctim.tv_sec);
  put_u32(b, (uint32_t)st->st_ctim.tv_nsec);
  put_u64(b, (uint64_t)st->st_size);
}

/* Sends a frame with `head` bytes and up to `want` bytes of the file; the count read, or -1 with errno. */
static ssize_t send_file_data(uint8_t type, uint32_t id, int fd, off_t offset, size_t want, uint32_t handle, const struct stat *st) {
  size_t head = type == F_OPENED ? OPENED_HEAD : 0;
  uint64_t size = st ? (uint64_t)st->st_size : 0;
  struct bytes b = {0};
  b.data = malloc(FRAME_HEADER + head + want);
  if (!b.data) _exit(70);
  b.room = FRAME_HEADER + head + want;
  ssize_t n = want ? read_fully(fd, b.data + FRAME_HEADER + head, want, offset) : 0;
  if (n >= 0) {
    size_t start = frame_open(&b, type, 0, id);
    if (head) {
      /* The whole file came along: no handle is needed. An empty size with content is a file like those of procfs. */
      if (handle && (uint64_t)n >= size && (size_t)n < want) {
        handle_close(handle);
        handle = 0;
        size = (uint64_t)n;
      }
      put_u32(&b, handle);
      put_u32(&b, (uint32_t)fd);
      put_u64(&b, size);
      put_version(&b, st, st->st_size == 0 && n > 0);
    }
    b.size += (size_t)n;
    frame_close(&b, start);
    files_send(&b);
  }
  int error = errno;
  free(b.data);
  errno = error;
  return n;
}

static int open_file(uint32_t id, const char *path, size_t prefetch) {
  /* Check before the open, because opening a FIFO or a device may block or have effects; and after, because it may have been swapped. */
  struct stat st;
  if (stat(path, &st) != 0) return errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  if (!S_ISREG(st.st_mode)) return EINVAL;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return errno;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return EINVAL;
  }
  uint32_t handle = handle_keep(fd);
  if (!handle) {
    close(fd);
    return EMFILE;
  }
  if (prefetch > PREFETCH) prefetch = PREFETCH;
  /* Ask for one byte more than the file has, to see its end: then a small file needs no handle. */
  if (st.st_size > 0 && (uint64_t)st.st_size + 1 < prefetch) prefetch = (size_t)st.st_size + 1;
  if (send_file_data(F_OPENED, id, fd, 0, prefetch, handle, &st) >= 0) return 0;
  /* EIO of a file such as /proc/1/mem does not mean a broken disk. */
  int error = errno == EIO && st.st_size == 0 ? ENXIO : errno;
  handle_close(handle);
  return error;
}

static int serve_read(uint32_t id, uint32_t handle, uint64_t offset, size_t want) {
  int fd = handle_fd(handle);
  if (fd < 0) return EBADF;
  return send_file_data(F_DATA, id, fd, (off_t)offset, want < READ_MAX ? want : READ_MAX, 0, NULL) >= 0 ? 0 : errno;
}

static int serve_write(uint32_t id, struct cursor *c, bool quiet) {
  char *path = take_string(c);
  int mode = (int)take_u32(c);
  size_t size;
  uint8_t *data = take_bytes(c, &size);
  if (c->bad || path[0] != '/') return EINVAL;
  struct stat st;
  int error = upload_whole(path, mode, data, size, &st);
  if (!error && quiet) send_done(id, 0);
  else if (!error) send_entry(id, path, &st);
  return error;
}

static int serve_mkdir(uint32_t id, const char *path, bool parents) {
  struct stat st;
  if (parents) {
    int error = make_directories(path);
    if (error) return error;
  } else if (mkdir(path, 0755) != 0) {
    return errno;
  }
  if (stat(path, &st) != 0) return errno;
  send_entry(id, path, &st);
  return 0;
}

static void serve(const struct frame *frame);

/* One after another: more threads would have to be woken, and would stay in the machine's memory. */
static void serve_together(const struct frame *frame) {
  struct feed feed = {.data = frame->payload, .size = frame->size};
  struct frame one;
  while (take_frame(&feed, &one) > 0)
    if (one.type != F_TOGETHER) serve(&one);
}

static int serve_upload(const struct frame *frame, struct cursor *c, enum subject *subject) {
  char *path = take_string(c);
  int mode = (int)take_u32(c);
  struct upload_wish wish = {.mode = mode < 0 ? -1 : mode & 07777, .append = frame->flags & 1};
  wish.owner = take_string(c);
  wish.group = take_string(c);
  if (!attributes_take(c, &wish.attributes)) {
    *subject = SUBJECT_ATTRIBUTES;
    return EINVAL;
  }
  if (path[0] != '/') {
    attributes_free(&wish.attributes);
    return EINVAL;
  }
  uint32_t handle;
  int fd;
  int error = upload_begin(path, &wish, &handle, &fd, subject);
  if (error) return error;
  struct bytes b = {0};
  size_t start = frame_open(&b, F_DATA, 0, frame->id);
  put_u32(&b, handle);
  put_u32(&b, (uint32_t)fd);
  frame_close(&b, start);
  files_send(&b);
  free(b.data);
  return 0;
}

static int serve_upload_data(uint32_t id, struct cursor *c) {
  uint32_t handle = take_u32(c);
  uint64_t offset = take_u64(c);
  size_t size;
  uint8_t *data = take_bytes(c, &size);
  int error = c->bad ? EINVAL : upload_write(handle, data, size, offset);
  if (!error) send_done(id, 0);
  return error;
}

static int serve_upload_end(const struct frame *frame, struct cursor *c) {
  uint32_t handle = take_u32(c);
  if (c->bad) return EINVAL;
  if (frame->flags & 1) {
    upload_abandon(handle);
    send_done(frame->id, 0);
    return 0;
  }
  char *path = NULL;
  struct stat st;
  int error = upload_commit(handle, &path, &st);
  if (!error) send_entry(frame->id, path, &st);
  free(path);
  return error;
}

static int serve_copy(const struct frame *frame, const char *source, struct cursor *c, enum subject *subject) {
  char *destination = take_string(c);
  struct stat st;
  if (c->bad || destination[0] != '/') return EINVAL;
  int error = copy_path(source, destination, frame->flags & 1, subject);
  if (!error && lstat(destination, &st) != 0) error = errno;
  if (!error) send_entry(frame->id, destination, &st);
  return error;
}

static int serve_change(const struct frame *frame, const char *path, struct cursor *c, enum subject *subject) {
  bool recursive = frame->flags & 1;
  int error;
  if (frame->type == F_CHMOD) {
    mode_t mode = take_u32(c) & 07777;
    error = c->bad ? EINVAL : change_mode(path, mode, recursive);
  } else {
    char *user = take_string(c), *group = take_string(c);
    uid_t uid;
    gid_t gid;
    if (c->bad || !owner_find(user, group, &uid, &gid, subject)) return EINVAL;
    error = change_owner(path, uid, gid, recursive);
  }
  struct stat st;
  if (!error && stat(path, &st) != 0) error = errno;
  if (!error) send_entry(frame->id, path, &st);
  return error;
}

/* The one request that follows, with that user's rights. */
static void serve_as(const struct frame *frame, struct cursor *c) {
  struct identity identity;
  char *user = take_string(c);
  struct feed feed = {.data = c->at, .size = (size_t)(c->end - c->at)};
  struct frame one;
  if (c->bad || take_frame(&feed, &one) <= 0 || one.type == F_AS || one.type == F_TOGETHER)
    return send_failure(frame->id, EINVAL, SUBJECT_PATH);
  if (!identity_find(user, &identity)) return send_failure(one.id, EINVAL, SUBJECT_USER);
  identity_assume(&identity);
  serve(&one);
  identity_assume(NULL);
}

static void serve(const struct frame *frame) {
  struct cursor c = cursor_of(frame);
  uint32_t id = frame->id;
  enum subject subject = SUBJECT_PATH;
  int error = EINVAL;
  struct stat st;
  if (frame->type == F_READ) {
    uint32_t handle = take_u32(&c);
    uint64_t offset = take_u64(&c);
    uint32_t want = take_u32(&c);
    error = c.bad ? EINVAL : serve_read(id, handle, offset, want);
  } else if (frame->type == F_CLOSE) {
    handle_close(take_u32(&c));
    return; /* not answered */
  } else if (frame->type == F_TOGETHER) {
    serve_together(frame);
    return; /* each frame is answered by itself */
  } else if (frame->type == F_AS) {
    serve_as(frame, &c);
    return;
  } else if (frame->type == F_WRITE) {
    error = serve_write(id, &c, frame->flags & 1);
  } else if (frame->type == F_UPLOAD) {
    error = serve_upload(frame, &c, &subject);
  } else if (frame->type == F_UPLOAD_DATA) {
    error = serve_upload_data(id, &c);
  } else if (frame->type == F_UPLOAD_END) {
    error = serve_upload_end(frame, &c);
  } else if (frame->type == F_WATCH_MORE || frame->type == F_UNWATCH) {
    if (frame->type == F_UNWATCH) watch_end(id);
    else watch_more(id);
    return; /* not answered */
  } else if (frame->type == F_HOSTNAME) {
    /* Done here, because this process is in the users' namespaces and a program would cost a hundred times the call. */
    char *hostname = take_string(&c);
    error = c.bad ? EINVAL : sethostname(hostname, strlen(hostname)) == 0 ? 0 : errno;
    if (!error) send_done(id, 0);
  } else if (frame->type == F_BOOT_ID) {
    char *boot_id = take_string(&c);
    error = c.bad ? EINVAL : set_boot_id(boot_id);
    if (!error) send_done(id, 0);
  } else if (frame->type == F_SYNC) {
    sync();
    send_done(id, 0);
    return;
  } else {
    char *path = take_string(&c);
    if (c.bad || path[0] != '/') {
      send_failure(id, EINVAL, subject);
      return;
    }
    switch (frame->type) {
      case F_LSTAT:
        error = (frame->flags & 1 ? stat(path, &st) : lstat(path, &st)) == 0 ? 0 : errno;
        if (!error) send_entry_with(id, path, &st, frame->flags & 2 ? frame->flags & 1 ? OF_TARGET : OF_ENTRY : NO_ATTRIBUTES);
        break;
      case F_OPEN: error = open_file(id, path, take_u32(&c)); break;
      case F_REMOVE:
        error = remove_entry(path, frame->flags & 1);
        if (!error) send_done(id, 0);
        break;
      case F_LIST: {
        uint32_t depth = take_u32(&c), limit = take_u32(&c);
        bool truncated = false;
        error = list_entries(id, path, depth, limit, frame->flags & 1 ? OF_ENTRY : NO_ATTRIBUTES, &truncated);
        if (!error) send_done(id, truncated);
        break;
      }
      case F_MKDIR: error = serve_mkdir(id, path, frame->flags & 1); break;
      case F_MOVE: {
        char *destination = take_string(&c);
        if (c.bad || destination[0] != '/') break;
        error = move_entry(path, destination, &subject);
        if (!error && lstat(destination, &st) != 0) error = errno;
        if (!error) send_entry(id, destination, &st);
        break;
      }
      case F_COPY: error = serve_copy(frame, path, &c, &subject); break;
      case F_CHMOD:
      case F_CHOWN: error = serve_change(frame, path, &c, &subject); break;
      case F_WATCH: error = watch_begin(id, path, frame->flags & 1); break;
      default: error = ENOSYS; break;
    }
  }
  if (error) send_failure(id, error, subject);
}

_Noreturn static void *worker(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&queue_lock);
    idle++;
    while (!queue_head) pthread_cond_wait(&queue_ready, &queue_lock);
    idle--;
    struct request *request = queue_head;
    queue_head = request->next;
    if (!queue_head) queue_tail = &queue_head;
    waiting--;
    pthread_mutex_unlock(&queue_lock);
    serve(&request->frame);
    free(request);
  }
}

static void enqueue(const struct frame *frame) {
  struct request *request = malloc(sizeof *request + frame->size);
  if (!request) _exit(70);
  request->frame = *frame;
  request->frame.payload = (uint8_t *)(request + 1);
  memcpy(request->frame.payload, frame->payload, frame->size);
  request->next = NULL;
  pthread_mutex_lock(&queue_lock);
  *queue_tail = request;
  queue_tail = &request->next;
  waiting++;
  bool start = waiting > idle && threads < THREADS_MAX;
  if (start) threads++;
  pthread_cond_signal(&queue_ready);
  pthread_mutex_unlock(&queue_lock);
  if (!start) return;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, THREAD_STACK);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, worker, NULL) != 0) {
    pthread_mutex_lock(&queue_lock);
    threads--;
    bool stuck = threads == 0;
    pthread_mutex_unlock(&queue_lock);
    if (stuck) _exit(70);
  }
  pthread_attr_destroy(&attributes);
}

/* Ends this process when init ends: all of the guest's processes are gone then. */
_Noreturn static void *wait_for_init(void *argument) {
  pid_t init = (pid_t)(intptr_t)argument;
  for (int status;;) {
    pid_t r = waitpid(init, &status, WUNTRACED);
    /* gVisor, unlike Linux, lets the guest's root stop pid 1: continue it at once. */
    if (r == init && WIFSTOPPED(status)) kill(init, SIGCONT);
    else if (r >= 0 || errno != EINTR) break;
  }
  process_limit_remove(process_limit);
  _exit(0);
}

void files_hello(int fd) {
  agent_fd = fd;
  fcntl(fd, F_SETFL, 0); /* blocking: a thread whose answer does not fit waits */
  signal(SIGPIPE, SIG_IGN);
  struct bytes hello = {0};
  size_t start = frame_open(&hello, F_HELLO, 0, 0);
  put_u32(&hello, WIRE_VERSION);
  frame_close(&hello, start);
  files_send(&hello);
}

_Noreturn void files_serve(pid_t init, const struct process_limit *limit, const struct memory_guard *guard) {
  process_limit = limit;
  prctl(PR_SET_NAME, "cloche-files");
  umask(022);
  pthread_t waiter;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, THREAD_STACK);
  if (pthread_create(&waiter, &attributes, wait_for_init, (void *)(intptr_t)init) != 0) _exit(70);
  if (guard && !memory_guard_start(guard, files_send)) _exit(70);
  struct feed feed = {0};
  for (;;) {
    size_t room;
    uint8_t *at = feed_room(&feed, &room);
    ssize_t n = read(agent_fd, at, room);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    feed.size += (size_t)n;
    struct frame frame;
    int r;
    while ((r = take_frame(&feed, &frame)) > 0) enqueue(&frame);
    if (r < 0) break;
  }
  kill(init, SIGKILL);
  pthread_join(waiter, NULL);
  _exit(0);
}
