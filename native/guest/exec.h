/*
 * The state of one exec inside init, and the functions that init's files share: init.c (loop), exec.c (life of an exec),
 * exec-request.c, exec-kill.c, launcher-pool.c, terminal.c, stream.c (pipes).
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

/* A descriptor that init waits for. */
struct watch {
  enum watch_kind kind;
  int fd; /* -1: closed */
  bool armed; /* in the poll set, at `place` */
  int place;
  struct exec *exec;
};

/* A pipe from the program. Read only while the agent has given credit. */
struct output {
  struct watch watch;
  uint8_t frame_type;
  uint32_t credit;
  uint32_t drain; /* while draining: bytes still to send */
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
  struct launcher *launcher; /* NULL: the launcher is done with this exec */
  bool killing, main_known, exit_sent;
  int64_t pty_deadline_ms; /* while a pty drains: when it counts as empty; 0: no drain */
  int64_t pty_last_ms; /* when the drain ends at the latest */
  struct output outputs[2];
  struct watch input;
  struct bytes pending_input;
  size_t pending_start;
  uint32_t input_consumed;
  bool input_ending;
  bool started_sent;
  struct exec *next;
};

/* The armed watches: two parallel arrays. */
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
  struct bytes outbox; /* frames that the agent's socket did not take yet */
  size_t outbox_start;
  bool paused;
  bool spared; /* the OOM killer never ends this process */
  struct exec *execs;
  struct launch *free_launches;
  int free_launch_count;
  struct launcher *launchers; /* all that are not reaped yet */
  struct launcher *idle_launcher; /* waits for the next exec; NULL: none waits */
  struct launcher *free_launchers;
  int free_launcher_count;
  void **gone; /* freed after a batch of events, because an event may still point to it */
  int gone_count, gone_room;
  int64_t next_kill_ms; /* 0: no tree is being killed */
  int kill_pause_ms, kill_alive, kill_rounds;
  int limit_fd, current_fd; /* pids.max and pids.current of the users' cgroup; -1: none */
  unsigned asked_processes, max_processes;
  bool forks_stopped;
  struct memory_bell *bell; /* NULL: there is no memory guard */
  int containers;           /* open ones, as the agent said */
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
void exec_report_pid(struct init *in, struct exec *e);
/* A child of init was reaped. */
void exec_reaped(struct init *in, pid_t pid, int status);
/* A child of init was stopped: a launcher goes on. */
void exec_stopped(struct init *in, pid_t pid);
/* The launcher of `launch` has sent a notice. */
void exec_noticed(struct init *in, struct launch *launch);
/* Moves to the next phase if the outputs are drained; may free the exec. */
void exec_advance(struct init *in, struct exec *e);
/* Repeats kills and ends drains of ptys that are due. Returns the delay to the next call in ms, -1 for none. */
int exec_tick(struct init *in);

/* exec-request.c */
/* Reads the request of a spawn into e->launch. Returns the stage that failed, with its error and text. */
int exec_read_request(struct exec *e, struct cursor *c, int *error, const char **text);

/* exec-kill.c */
/* Begins to kill the whole tree of `e`, in rounds that exec_tick starts. */
void exec_kill(struct init *in, struct exec *e);
/* One round, for all trees being killed. Rounds end when no process is left below their launchers. */
void kill_round(struct init *in, int64_t now);

/* launcher-pool.c */
/* Starts a launcher that waits for the first exec. */
void launcher_prepare(struct init *in);
/* Gives the launch of `e` to the waiting launcher or a new one; false with errno. */
bool launcher_begin(struct init *in, struct exec *e);
/* The launch is over: the launcher waits for another, or ends if one waits already. */
void launcher_rest(struct init *in, struct launcher *launcher);
/* The launcher with this pid, or NULL. */
struct launcher *launcher_of(struct init *in, pid_t pid);
/* The launcher's process was reaped. */
void launcher_forget(struct init *in, struct launcher *launcher);

/* terminal.c */
/* Replaces a TERM that no terminfo database of the tree has with xterm-256color. */
void terminal_make_known(char **envp, const char *home);
/* Opens a pty of the guest's own devpts: the master for init, the slave for the program; false with errno. */
bool terminal_open(struct init *in, struct exec *e, const struct winsize *size, int *slave);
void terminal_resize(struct exec *e, const struct winsize *size);
/* Signals the foreground process group. */
void terminal_signal(struct init *in, struct exec *e, int signal);

/* stream.c */
void output_readable(struct init *in, struct output *out);
void output_credit(struct init *in, struct output *out, uint32_t bytes);
void output_rearm(struct init *in, struct output *out);
void output_start_drain(struct init *in, struct output *out);
/* For a pty whose drain is due: whether to go on, because output just came (only if `more`) or waits for credit. */
bool output_drain_on(struct init *in, struct output *out, bool more);
/* Hands a pipe that background processes still write to over to a sink, so that they neither block nor die of SIGPIPE. */
void output_release(struct init *in, struct output *out);
void sink_readable(struct init *in, struct watch *watch);
void input_feed(struct init *in, struct exec *e, const uint8_t *data, size_t size);
void input_end(struct init *in, struct exec *e);
void input_writable(struct init *in, struct exec *e);

#endif
