#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec.h"

#define OUTBOX_PAUSE (1u << 20) /* outputs are not read while more than this waits for the agent */

static void *resized(void *memory, size_t size) {
  memory = realloc(memory, size);
  if (!memory) _exit(70);
  return memory;
}

void watch_arm(struct init *in, struct watch *watch, short events) {
  if (watch->armed || watch->fd < 0) return;
  struct poll_set *set = &in->waiting;
  if (set->count == set->room) {
    set->room = set->room ? set->room * 2 : 64;
    set->fds = resized(set->fds, (size_t)set->room * sizeof *set->fds);
    set->watches = resized(set->watches, (size_t)set->room * sizeof *set->watches);
  }
  set->fds[set->count] = (struct pollfd){.fd = watch->fd, .events = events};
  set->watches[set->count] = watch;
  watch->place = set->count++;
  watch->armed = true;
}

/* Removes the descriptor instead of masking it: poll always reports a hang-up, so a pipe without credit would make the loop spin. */
void watch_disarm(struct init *in, struct watch *watch) {
  if (!watch->armed) return;
  struct poll_set *set = &in->waiting;
  int last = --set->count;
  set->fds[watch->place] = set->fds[last];
  set->watches[watch->place] = set->watches[last];
  set->watches[watch->place]->place = watch->place;
  watch->armed = false;
}

void watch_close(struct init *in, struct watch *watch) {
  if (watch->fd < 0) return;
  watch_disarm(in, watch);
  close(watch->fd);
  watch->fd = -1;
}

void free_later(struct init *in, void *memory) {
  if (in->gone_count == in->gone_room) {
    in->gone_room = in->gone_room ? in->gone_room * 2 : 64;
    in->gone = resized(in->gone, (size_t)in->gone_room * sizeof *in->gone);
  }
  in->gone[in->gone_count++] = memory;
}

static void arm_agent(struct init *in, bool out) {
  if (in->agent.armed) in->waiting.fds[in->agent.place].events = (short)(POLLIN | (out ? POLLOUT : 0));
}

static void set_paused(struct init *in) {
  bool paused = in->outbox.size - in->outbox_start > OUTBOX_PAUSE;
  if (paused == in->paused) return;
  in->paused = paused;
  for (struct exec *e = in->execs; e; e = e->next)
    for (int i = 0; i < 2; i++) output_rearm(in, &e->outputs[i]);
}

static void flush(struct init *in) {
  while (in->outbox_start < in->outbox.size) {
    ssize_t n = write(in->agent_fd, in->outbox.data + in->outbox_start, in->outbox.size - in->outbox_start);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) _exit(0); /* the agent is gone */
    in->outbox_start += (size_t)n;
  }
  if (in->outbox_start == in->outbox.size) in->outbox_start = in->outbox.size = 0;
  arm_agent(in, in->outbox.size > 0);
  set_paused(in);
}

void send_in_place(struct init *in, uint8_t type, uint32_t id, uint8_t *buffer, size_t size) {
  frame_header(buffer, type, 0, id, size);
  size_t whole = size + FRAME_HEADER, sent = 0;
  if (in->outbox.size == 0) {
    ssize_t n = write(in->agent_fd, buffer, whole);
    if (n < 0 && errno != EAGAIN && errno != EINTR) _exit(0);
    if (n > 0) sent = (size_t)n;
  }
  if (sent == whole) return;
  /* Under constant load the outbox is never empty: reuse the room of bytes already sent. */
  size_t waiting = in->outbox.size - in->outbox_start;
  if (in->outbox_start > waiting) {
    memmove(in->outbox.data, in->outbox.data + in->outbox_start, waiting);
    in->outbox.size = waiting;
    in->outbox_start = 0;
  }
  put_raw(&in->outbox, buffer + sent, whole - sent);
  arm_agent(in, true);
  if (!in->paused && in->outbox.size - in->outbox_start > OUTBOX_PAUSE) set_paused(in);
}

void send_frame(struct init *in, uint8_t type, uint32_t id, const void *payload, size_t size) {
  uint8_t buffer[FRAME_HEADER + 1024];
  if (size > 1024) size = 1024;
  memcpy(buffer + FRAME_HEADER, payload, size);
  send_in_place(in, type, id, buffer, size);
}

/* The machine's memory may have another size than the template's. */
static void renew_limit(struct init *in) {
  unsigned max = process_limit_fitting(in->asked_processes);
  char text[16];
  int size = snprintf(text, sizeof text, "%u", max);
  if (in->limit_fd >= 0 && max != in->max_processes && pwrite(in->limit_fd, text, (size_t)size, 0) == size) in->max_processes = max;
}

static void renew(struct init *in) {
  const char *failed = guest_renew();
  int error = !failed ? 0 : errno ? errno : EIO;
  renew_limit(in);
  if (in->proc_fd >= 0) close(in->proc_fd);
  in->proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct bytes b = {0};
  put_u32(&b, (uint32_t)error);
  put_string(&b, failed ? failed : "");
  send_frame(in, F_RENEWED, 0, b.data, b.size);
  free(b.data);
}

/* Containers have an init of their own, without a bell: the agent says how many there are. */
static void count_containers(struct init *in, const struct frame *frame) {
  struct cursor c = cursor_of(frame);
  int count = (int)take_u32(&c);
  memory_bell_hold(in->bell, count - in->containers);
  in->containers = count;
}

static void handle(struct init *in, const struct frame *frame) {
  if (frame->type == F_SPAWN) {
    exec_spawn(in, frame);
    return;
  }
  if (frame->type == F_RENEW) {
    renew(in);
    return;
  }
  if (frame->type == F_CONTAINERS) {
    count_containers(in, frame);
    return;
  }
  struct exec *e = exec_find(in, frame->id);
  if (!e) return; /* it ended while the frame was on its way */
  struct cursor c = cursor_of(frame);
  switch (frame->type) {
    case F_STDIN: input_feed(in, e, frame->payload, frame->size); break;
    case F_STDIN_END: input_end(in, e); break;
    case F_CREDIT: output_credit(in, &e->outputs[frame->flags == 2], take_u32(&c)); break;
    case F_SIGNAL: exec_signal(in, e, (int)take_u32(&c), frame->flags); break;
    case F_KILL: exec_kill(in, e); break;
    case F_PID: exec_report_pid(in, e); break;
    case F_RESIZE: {
      struct winsize size = {0};
      size.ws_col = take_u16(&c);
      size.ws_row = take_u16(&c);
      terminal_resize(e, &size);
      break;
    }
    default: break; /* a frame of a newer agent */
  }
}

static void agent_readable(struct init *in) {
  size_t room;
  uint8_t *at = feed_room(&in->feed, &room);
  ssize_t n = read(in->agent_fd, at, room);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) _exit(0);
  in->feed.size += (size_t)n;
  struct frame frame;
  for (int r; (r = take_frame(&in->feed, &frame)) != 0;) {
    if (r < 0) _exit(71);
    handle(in, &frame);
  }
}

static void reap(struct init *in) {
  struct signalfd_siginfo info[8];
  while (read(in->signal_fd, info, sizeof info) == sizeof info) continue; /* less: that was all */
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL);
    if (pid <= 0) break;
    if (WIFSTOPPED(status)) exec_stopped(in, pid);
    else exec_reaped(in, pid, status);
  }
}

static void notices(struct init *in) {
  struct launch *news[64];
  ssize_t n = read(in->notify_read, news, sizeof news);
  for (ssize_t i = 0; i < n / (ssize_t)sizeof *news; i++) exec_noticed(in, news[i]);
}

static void dispatch(struct init *in, struct watch *watch, short events) {
  if (watch->fd < 0) return; /* closed earlier in this batch */
  switch (watch->kind) {
    case WATCH_AGENT:
      if (events & POLLOUT) flush(in);
      if (events & (POLLIN | POLLHUP | POLLERR)) agent_readable(in);
      break;
    case WATCH_CHILDREN: reap(in); break;
    case WATCH_NOTIFY: notices(in); break;
    case WATCH_OUTPUT: output_readable(in, (struct output *)watch); break;
    case WATCH_INPUT: input_writable(in, watch->exec); break;
    case WATCH_SINK: sink_readable(in, watch); break;
  }
}

struct ready {
  struct watch *watch;
  short events;
};

/*
 * Waits, fills `in->ready` and returns its count. Uses poll and not epoll, because gVisor restores epoll instances broken. A call
 * that passes all its descriptors each time keeps no state.
 */
static int take_ready(struct init *in, int timeout_ms) {
  struct poll_set *set = &in->waiting;
  int left = poll(set->fds, (nfds_t)set->count, timeout_ms);
  if (left > in->ready_room) {
    in->ready_room = left * 2;
    in->ready = resized(in->ready, (size_t)in->ready_room * sizeof *in->ready);
  }
  int count = 0;
  for (int i = 0; i < set->count && count < left; i++)
    if (set->fds[i].revents) in->ready[count++] = (struct ready){set->watches[i], set->fds[i].revents};
  return count;
}

/* Init must get CPU time however many processes a user runs. Programs that it starts have the usual priority. */
void init_raise_priority(void) {
  struct sched_param none = {0};
  if (sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none) == 0) setpriority(PRIO_PROCESS, 0, -20);
}

/* Whether the OOM killer spares init: in a virtual machine, whose kernel is our own, init inherits the agent's oom_score_adj. */
static bool is_spared(void) {
  char text[8] = "";
  int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  return size > 0 && text[0] == '-';
}

static void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

_Noreturn void init_serve(int agent_fd, int self_fd, struct process_limit *limit, struct memory_bell *bell, int run_fd) {
  static struct init in;
  in.bell = bell;
  in.agent_fd = agent_fd;
  /* A program moves its descriptors to 0..3 (launcher.c), so ours must lie above. */
  in.self_fd = fcntl(self_fd, F_DUPFD_CLOEXEC, 10);
  in.procs_fd = limit->procs_fd < 0 ? -1 : fcntl(limit->procs_fd, F_DUPFD_CLOEXEC, 10);
  in.limit_fd = limit->max_fd < 0 ? -1 : fcntl(limit->max_fd, F_DUPFD_CLOEXEC, 10);
  in.current_fd = limit->current_fd < 0 ? -1 : fcntl(limit->current_fd, F_DUPFD_CLOEXEC, 10);
  in.asked_processes = limit->asked;
  in.max_processes = limit->max;
  in.spared = is_spared();
  process_limit_close(limit);
  close(self_fd);
  prctl(PR_SET_DUMPABLE, 0);
  prctl(PR_SET_NAME, "cloche-init");
  umask(022);
  init_raise_priority();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL); /* no signal of a user may end or stop pid 1; programs start with an empty mask */
  int notify[2];
  if (pipe2(notify, O_CLOEXEC | O_NONBLOCK) < 0) _exit(72);
  /* The write end blocks, so that a launcher waits for init. */
  fcntl(notify[1], F_SETFL, 0);
  in.notify_read = notify[0];
  in.notify_write = notify[1];
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  in.signal_fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  /* Held open from the start: users may unmount or cover these. */
  in.proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  in.pts_fd = open("/dev/pts", O_PATH | O_DIRECTORY | O_CLOEXEC);
  in.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (in.signal_fd < 0 || in.proc_fd < 0 || in.null_fd < 0) _exit(72);
  nonblocking(agent_fd);
  in.agent = (struct watch){.kind = WATCH_AGENT, .fd = agent_fd};
  in.children = (struct watch){.kind = WATCH_CHILDREN, .fd = in.signal_fd};
  in.notices = (struct watch){.kind = WATCH_NOTIFY, .fd = in.notify_read};
  watch_arm(&in, &in.agent, POLLIN);
  watch_arm(&in, &in.children, POLLIN);
  watch_arm(&in, &in.notices, POLLIN);
  uint32_t version = WIRE_VERSION;
  send_frame(&in, F_HELLO, 0, &version, sizeof version);
  launcher_prepare(&in);
  char none;
  while (read(run_fd, &none, 1) < 0 && errno == EINTR);
  close(run_fd);
  for (;;) {
    int n = take_ready(&in, exec_tick(&in));
    for (int i = 0; i < n; i++) dispatch(&in, in.ready[i].watch, in.ready[i].events);
    while (in.gone_count > 0) free(in.gone[--in.gone_count]);
  }
}
