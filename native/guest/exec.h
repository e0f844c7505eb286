/*
 * The state of one exec inside init, and what its files need of one another: init.c (loop), exec.c (life), exec-request.c,
 * exec-kill.c, launcher-pool.c, stream.c (pipes).
 */
#ifndef CLOCHE_EXEC_H
#define CLOCHE_EXEC_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "launcher.h"
#include "wire.h"

enum watch_kind { WATCH_AGENT, WATCH_CHILDREN, WATCH_NOTIFY, WATCH_OUTPUT, WATCH_INPUT, WATCH_SINK };

/* What init waits for. */
struct watch {
  enum watch_kind kind;
  int fd; /* -1: closed */
  bool armed; /* waited for, at `place` in the poll set */
  int place;
  struct exec *exec;
};

/* A pipe from the program. Read only while the agent has credit for it. */
struct output {
  struct watch watch;
  uint8_t frame_type;
  uint32_t credit;
  uint32_t drain; /* while draining: bytes that still have to be sent */
  bool drained;
};

enum exec_phase { PHASE_RUNNING, PHASE_DRAINING, PHASE_HELD, PHASE_LAST_DRAIN };

struct exec {
  uint32_t id;
  uint8_t flags;
  enum exec_phase phase;
  struct launch *launch;
  uint8_t *payload; /* owns the strings launch points to */
  char **vectors;
  struct launcher *launcher; /* NULL: it is done with this exec */
  bool killing, main_known, exit_sent;
  int64_t pty_deadline_ms; /* of the drain of a pty: when it counts as empty; 0: none */
  int64_t pty_last_ms; /* no drain of it is longer */
  struct output outputs[2];
  struct watch input;
  struct bytes pending_input;
  size_t pending_start;
  uint32_t input_consumed;
  bool input_ending;
  bool started_sent;
  struct exec *next;
};

/* What is waited for: two arrays side by side. */
struct poll_set {
  struct pollfd *fds;
  struct watch **watches;
  int count, room;
};

struct init {
  int agent_fd, signal_fd, notify_read, notify_write, self_fd, procs_fd, proc_fd, pts_fd, null_fd;
  struct watch agent, children, notices;
  struct poll_set waiting;
  struct ready *ready; /* the batch of events being handled */
  int ready_room;
  struct feed feed;
  struct bytes outbox; /* what the agent's socket did not take yet */
  size_t outbox_start;
  bool paused;
  bool spared; /* the kernel never ends this process for lack of memory */
  struct exec *execs;
  struct launch *free_launches;
  int free_launch_count;
  struct launcher *launchers; /* every one that was not reaped yet */
  struct launcher *idle_launcher; /* the one that waits for the next exec; NULL: there is none */
  struct launcher *free_launchers;
  int free_launcher_count;
  void **gone; /* freed at the end of a batch of events, none of which may point to freed memory */
  int gone_count, gone_room;
  int64_t next_kill_ms; /* 0: no tree is being killed */
  int kill_pause_ms, kill_alive, kill_rounds;
  int limit_fd, current_fd; /* pids.max and pids.current of the users' cgroup; -1: none */
  unsigned asked_processes, max_processes;
  bool forks_stopped;
  struct memory_bell *bell; /* NULL: nobody watches the memory */
};

/* init.c */
void send_frame(struct init *in, uint8_t type, uint32_t id, const void *payload, size_t size);
/* Sends a frame whose payload of `size` bytes follows FRAME_HEADER free bytes at `buffer`. */
void send_in_place(struct init *in, uint8_t type, uint32_t id, uint8_t *buffer, size_t size);
void watch_arm(struct init *in, struct watch *watch, short events);
void watch_disarm(struct init *in, struct watch *watch);
void watch_close(struct init *in, struct watch *watch);
void free_later(struct init *in, void *memory);

/* exec.c */
void exec_spawn(struct init *in, const struct frame *frame);
struct exec *exec_find(struct init *in, uint32_t id);
void exec_signal(struct init *in, struct exec *e, int signal, enum signal_scope scope);
/* Tells the pid, now or as soon as the program runs, of one that was started without. */
void exec_tell_pid(struct init *in, struct exec *e);
/* A child of init was reaped. */
void exec_reaped(struct init *in, pid_t pid, int status);
/* A child of init was stopped: a launcher goes on. */
void exec_stopped(struct init *in, pid_t pid);
/* The launcher of `launch` has news. */
void exec_noticed(struct init *in, struct launch *launch);
/* Goes on to the next phase when the outputs allow it; may free the exec. */
void exec_advance(struct init *in, struct exec *e);
/* Signals the trees being killed again; the delay until the next time in ms, -1 for none. */
int exec_tick(struct init *in);

/* exec-request.c */
/* Reads the request of a spawn into e->launch. Returns the stage that failed, with its error and text. */
int exec_read_request(struct exec *e, struct cursor *c, int *error, const char **text);

/* exec-kill.c */
/* Has the whole tree of `e` killed, in rounds that exec_tick begins. */
void exec_kill(struct init *in, struct exec *e);
/* One of these rounds, for all trees that are being killed; the killing ends when nothing is left below their launchers. */
void kill_round(struct init *in, int64_t now);

/* launcher-pool.c */
/* Has one wait for the first exec. */
void launcher_prepare(struct init *in);
/* Has the one that waits, or a new one, carry out the launch of `e`; false with errno. */
bool launcher_begin(struct init *in, struct exec *e);
/* Its launch is over: it waits for another, or ends where one waits already. */
void launcher_rest(struct init *in, struct launcher *launcher);
/* The one with this pid, or NULL. */
struct launcher *launcher_of(struct init *in, pid_t pid);
/* Its process was reaped. */
void launcher_forget(struct init *in, struct launcher *launcher);

/* terminal.c */
/* A new pty of the guest's own devpts: the master for init, the slave for the program; false with errno. */
bool terminal_open(struct init *in, struct exec *e, const struct winsize *size, int *slave);
void terminal_resize(struct exec *e, const struct winsize *size);
/* Signals the foreground process group. */
void terminal_signal(struct init *in, struct exec *e, int signal);

/* stream.c */
void output_readable(struct init *in, struct output *out);
void output_credit(struct init *in, struct output *out, uint32_t bytes);
void output_rearm(struct init *in, struct output *out);
void output_start_drain(struct init *in, struct output *out);
/* Of a pty whose drain should be over: whether it goes on, because output came just now (`more`: that counts) or there was no room for it. */
bool output_drain_on(struct init *in, struct output *out, bool more);
/* Hands a pipe that others still write to over to a sink, so that they neither block nor die of SIGPIPE. */
void output_release(struct init *in, struct output *out);
void sink_readable(struct init *in, struct watch *watch);
void input_feed(struct init *in, struct exec *e, const uint8_t *data, size_t size);
void input_end(struct init *in, struct exec *e);
void input_writable(struct init *in, struct exec *e);

#endif
