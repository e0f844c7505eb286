#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "memory.h"
#include "process-tree.h"

#define KEPT_LAUNCHES 16
#define PTY_DRAIN_MS 50 /* a pty is empty once no output came for this long: its last output comes a moment after its program ended */
#define PTY_DRAIN_MAX_MS 1000 /* background children may never stop writing */

static void spawn_error(struct init *in, uint32_t id, int stage, int error, const char *text) {
  struct bytes b = {0};
  put_u32(&b, (uint32_t)stage);
  put_u32(&b, (uint32_t)error);
  put_string(&b, text);
  send_frame(in, F_ERROR, id, b.data, b.size);
  free(b.data);
}

static struct launch *launch_take(struct init *in) {
  struct launch *l = in->free_launches;
  if (l) {
    in->free_launches = *(struct launch **)l->candidate;
    in->free_launch_count--;
  } else {
    l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (l == MAP_FAILED) return NULL;
  }
  memset(l, 0, offsetof(struct launch, candidate));
  for (int i = 0; i < 3; i++) l->ends[i] = -1;
  return l;
}

static void launch_give(struct init *in, struct launch *l) {
  if (in->free_launch_count >= KEPT_LAUNCHES) {
    munmap(l, sizeof *l);
    return;
  }
  *(struct launch **)l->candidate = in->free_launches;
  in->free_launches = l;
  in->free_launch_count++;
}

struct exec *exec_find(struct init *in, uint32_t id) {
  for (struct exec *e = in->execs; e; e = e->next)
    if (e->id == id) return e;
  return NULL;
}

/* Closes the exec's descriptors and frees it. Pipes that background children hold were handed to sinks before. */
static void exec_free(struct init *in, struct exec *e) {
  memory_bell_hold(in->bell, -1);
  for (struct exec **at = &in->execs; *at; at = &(*at)->next) {
    if (*at == e) {
      *at = e->next;
      break;
    }
  }
  for (int i = 0; i < 2; i++) watch_close(in, &e->outputs[i].watch);
  watch_close(in, &e->input);
  free(e->pending_input.data);
  free(e->vectors);
  free(e->payload);
  if (e->launch) {
    launch_close_ends(e->launch);
    launch_give(in, e->launch);
  }
  free_later(in, e);
}

/* Opens the pipes or the pty, and sets the descriptors that become the program's 0, 1 and 2. */
static bool open_streams(struct init *in, struct exec *e, struct winsize *size) {
  struct launch *l = e->launch;
  for (int i = 0; i < 3; i++) l->stdio[i] = in->null_fd;
  if (e->flags & SPAWN_PTY) {
    int slave;
    if (!terminal_open(in, e, size, &slave)) return false;
    l->stdio[0] = l->stdio[1] = l->stdio[2] = l->ends[0] = slave;
    return true;
  }
  int pair[2];
  bool merged = e->flags & SPAWN_MERGE;
  for (int i = 0; i < (merged ? 1 : 2); i++) {
    /* The program's end must block; only ours is made non-blocking. */
    if (pipe2(pair, O_CLOEXEC) < 0) return false;
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    e->outputs[i].watch.fd = pair[0];
    l->stdio[i + 1] = l->ends[i + 1] = pair[1];
  }
  if (merged) l->stdio[2] = l->stdio[1];
  if (e->flags & SPAWN_STDIN) {
    if (pipe2(pair, O_CLOEXEC) < 0) return false;
    fcntl(pair[1], F_SETFL, O_WRONLY | O_NONBLOCK);
    e->input.fd = pair[1];
    l->stdio[0] = l->ends[0] = pair[0];
  }
  return true;
}

/* Gives the pipes to the program's user, who may then open them again as /dev/stdin, /dev/stdout and /dev/stderr. */
static void give_pipes(const struct launch *l) {
  if (l->pty) return; /* terminal_open has done it */
  for (int i = 0; i < 3; i++)
    if (l->ends[i] >= 0) (void)!fchown(l->ends[i], l->uid, l->gid);
}

void exec_spawn(struct init *in, const struct frame *frame) {
  struct exec *e = calloc(1, sizeof *e);
  if (!e) _exit(70);
  memory_bell_hold(in->bell, 1);
  e->id = frame->id;
  e->flags = frame->flags;
  e->payload = malloc(frame->size + 1);
  if (!e->payload) _exit(70);
  memcpy(e->payload, frame->payload, frame->size);
  for (int i = 0; i < 2; i++) {
    e->outputs[i].watch = (struct watch){.kind = WATCH_OUTPUT, .fd = -1, .exec = e};
    e->outputs[i].frame_type = i == 0 ? F_STDOUT : F_STDERR;
  }
  e->input = (struct watch){.kind = WATCH_INPUT, .fd = -1, .exec = e};
  e->launch = launch_take(in);
  struct cursor c = {e->payload, e->payload + frame->size, false};
  struct winsize size = {0};
  size.ws_col = take_u16(&c);
  size.ws_row = take_u16(&c);
  e->outputs[0].credit = e->outputs[1].credit = take_u32(&c);
  int error = ENOMEM;
  const char *text = "memory";
  int stage = e->launch ? exec_read_request(e, &c, &error, &text) : STAGE_FORK;
  if (stage == STAGE_NONE && !open_streams(in, e, &size)) {
    stage = e->flags & SPAWN_PTY ? STAGE_PTY : STAGE_FORK;
    error = errno;
  }
  if (stage == STAGE_NONE) {
    struct launch *l = e->launch;
    snprintf(l->name, sizeof l->name, LAUNCHER_NAME "%08x", e->id);
    l->self_fd = in->self_fd;
    l->procs_fd = in->procs_fd;
    l->spared = in->spared;
    l->pty = e->flags & SPAWN_PTY;
    l->hold = e->flags & SPAWN_HOLD;
    l->notify_start = !(e->flags & SPAWN_QUIET);
    give_pipes(l);
    if (!launcher_begin(in, e)) {
      stage = STAGE_FORK;
      error = errno;
    }
  }
  e->next = in->execs;
  in->execs = e;
  if (stage != STAGE_NONE) {
    spawn_error(in, e->id, stage, error, text);
    exec_free(in, e);
    return;
  }
  for (int i = 0; i < 2; i++) output_rearm(in, &e->outputs[i]);
}

static void send_started(struct init *in, struct exec *e) {
  if (e->started_sent || e->flags & SPAWN_QUIET || e->launch->pid == 0 || e->launch->stage != STAGE_NONE) return;
  e->started_sent = true;
  uint32_t pid = (uint32_t)e->launch->pid;
  send_frame(in, F_STARTED, e->id, &pid, sizeof pid);
}

static void send_exit(struct init *in, struct exec *e) {
  if (e->exit_sent) return;
  e->exit_sent = true;
  int status = e->launch->status;
  uint32_t signal = WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 0;
  uint32_t code = signal ? 128 + signal : (uint32_t)WEXITSTATUS(status);
  uint32_t payload[3] = {(uint32_t)e->launch->pid, code, signal};
  send_frame(in, F_EXIT, e->id, payload, sizeof payload);
}

static void start_drain(struct init *in, struct exec *e, enum exec_phase phase) {
  e->phase = phase;
  if (e->flags & SPAWN_PTY) {
    int64_t now = now_ms();
    e->pty_deadline_ms = now + PTY_DRAIN_MS;
    e->pty_last_ms = now + PTY_DRAIN_MAX_MS;
  }
  for (int i = 0; i < 2; i++) output_start_drain(in, &e->outputs[i]);
  exec_advance(in, e);
}

void exec_advance(struct init *in, struct exec *e) {
  if (e->phase != PHASE_DRAINING && e->phase != PHASE_LAST_DRAIN) return;
  for (int i = 0; i < 2; i++)
    if (e->outputs[i].watch.fd >= 0 && !e->outputs[i].drained) return;
  send_exit(in, e);
  if (e->launcher) { /* held: its children may go on writing */
    e->phase = PHASE_HELD;
    for (int i = 0; i < 2; i++) {
      e->outputs[i].drained = false;
      output_rearm(in, &e->outputs[i]);
    }
    return;
  }
  if (e->flags & SPAWN_HOLD && e->phase != PHASE_LAST_DRAIN) {
    start_drain(in, e, PHASE_LAST_DRAIN);
    return;
  }
  for (int i = 0; i < 2; i++) output_release(in, &e->outputs[i]);
  if (e->flags & SPAWN_HOLD) send_frame(in, F_ENDED, e->id, "", 0);
  exec_free(in, e);
}

/* The launch is over, or its launcher ended with `status`. */
static void launcher_done(struct init *in, struct exec *e, int status) {
  e->launcher = NULL;
  struct launch *l = e->launch;
  if (l->stage != STAGE_NONE) {
    spawn_error(in, e->id, l->stage, l->error, l->required);
    exec_free(in, e);
    return;
  }
  if (!l->main_done) {
    /* A user killed the launcher. The program is now init's own child. */
    launch_close_ends(l);
    if (l->pid != 0 && kill(l->pid, 0) == 0) return;
    l->status = WIFSIGNALED(status) ? status : SIGKILL;
    l->main_done = true;
  }
  e->main_known = true;
  send_started(in, e);
  watch_close(in, &e->input);
  if (e->phase == PHASE_RUNNING) start_drain(in, e, PHASE_DRAINING);
  else if (e->phase == PHASE_HELD) start_drain(in, e, PHASE_LAST_DRAIN);
}

void exec_noticed(struct init *in, struct launch *launch) {
  for (struct exec *e = in->execs; e; e = e->next) {
    if (e->launch != launch) continue;
    if (e->launcher && __atomic_load_n(&launch->over, __ATOMIC_ACQUIRE)) {
      launcher_rest(in, e->launcher);
      launcher_done(in, e, 0);
      return;
    }
    send_started(in, e);
    if (launch->main_done && !e->main_known) {
      e->main_known = true;
      watch_close(in, &e->input);
      /* While the tree is being killed, EXIT waits for its last process. */
      if (!e->killing && e->phase == PHASE_RUNNING) start_drain(in, e, PHASE_DRAINING);
    }
    return;
  }
}

void exec_reaped(struct init *in, pid_t pid, int status) {
  struct launcher *k = launcher_of(in, pid);
  if (k) {
    struct exec *e = k->exec;
    launcher_forget(in, k);
    /* A user may kill a waiting launcher, so it may have ended before it started the program: use another. */
    bool again = e && e->launch->pid == 0 && e->launch->stage == STAGE_NONE && launcher_begin(in, e);
    if (e && !again) launcher_done(in, e, status);
    return;
  }
  for (struct exec *e = in->execs; e; e = e->next) {
    if (e->launch->pid != pid || e->launch->main_done) continue;
    e->launch->status = status;
    e->launch->main_done = true;
    if (!e->launcher) launcher_done(in, e, status);
    return;
  }
}

void exec_stopped(struct init *in, pid_t pid) {
  if (launcher_of(in, pid)) kill(pid, SIGCONT);
}

void exec_signal(struct init *in, struct exec *e, int signal, enum signal_scope scope) {
  if (signal <= 0 || signal > 64) return;
  bool running = e->launch->pid > 0 && !e->launch->main_done;
  if (scope == SCOPE_TREE) {
    if (e->launcher) tree_signal(in->proc_fd, e->launcher->pid, signal);
  } else if (running && scope == SCOPE_GROUP) {
    if (e->flags & SPAWN_PTY) terminal_signal(in, e, signal);
    else if (kill(-e->launch->pid, signal) < 0) kill(e->launch->pid, signal);
  } else if (running) {
    kill(e->launch->pid, signal);
  }
}

void exec_report_pid(struct init *in, struct exec *e) {
  e->flags &= (uint8_t)~SPAWN_QUIET;
  send_started(in, e);
}

int exec_tick(struct init *in) {
  int64_t now = 0, next = -1;
  if (in->next_kill_ms != 0) {
    now = now_ms();
    if (now >= in->next_kill_ms) kill_round(in, now);
    if (in->next_kill_ms != 0) next = in->next_kill_ms > now ? in->next_kill_ms - now : 0;
  }
  for (struct exec *e = in->execs, *following; e; e = following) {
    following = e->next;
    if (e->pty_deadline_ms == 0) continue;
    if (now == 0) now = now_ms();
    if (now >= e->pty_deadline_ms && !output_drain_on(in, &e->outputs[0], now < e->pty_last_ms)) {
      e->pty_deadline_ms = 0;
      e->outputs[0].drained = true;
      exec_advance(in, e);
    } else if (now >= e->pty_deadline_ms) {
      e->pty_deadline_ms = now + PTY_DRAIN_MS;
      next = next < 0 || next > PTY_DRAIN_MS ? PTY_DRAIN_MS : next;
    } else if (next < 0 || e->pty_deadline_ms - now < next) {
      next = e->pty_deadline_ms - now;
    }
  }
  return (int)next;
}
