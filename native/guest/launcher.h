/*
 * One launch: the data for a launcher and its program, in memory that init, the launcher and (until execve) the program share.
 *
 *     init ──clone(VM|FILES)──▶ launcher ──clone(VM|VFORK)──▶ program ──execve──▶ ...
 *
 * The launcher is a child subreaper: all descendants of the program, setsid children included, stay below it until it ends, so
 * exactly the tree of one exec can be found and killed. The launch is over when the program ends, or with `hold` when the whole
 * tree has ended. The launcher then waits for the next launch. If children are left in the background it ends instead, and
 * they become init's.
 */
#ifndef CLOCHE_LAUNCHER_H
#define CLOCHE_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STACK_SIZE 16384
#define LAUNCH_PATH 8192
#define LAUNCH_REQUIRED 256
#define GROUPS_MAX 256
/* Start of a launcher's name; the id of its exec follows in eight hexadecimal digits. */
#define LAUNCHER_NAME "cloche-"
/* Name of a waiting launcher: the agent (control/activity.ts) does not count it among users' processes. */
#define WAITING_NAME LAUNCHER_NAME "waiting"

struct launch {
  /* Set by init before the launcher starts. */
  char **argv;
  char **envp;
  const char *path; /* PATH of the request; NULL when argv[0] has a slash */
  const char *cwd;  /* NULL: home, or "/" if there is none */
  const char *home;
  char name[16]; /* the launcher's */
  bool switch_user, pty, self, notify_start;
  bool spared; /* the OOM killer spares init; it must not spare the program */
  uid_t uid;
  gid_t gid;
  int group_count;
  gid_t groups[GROUPS_MAX];
  int stdio[3], self_fd, procs_fd;
  /* Init's copies of the program's ends of pipes or pty. Closed once the program has them, by launcher or init; -1: none. */
  volatile int ends[3];
  /* Set by launcher and program, read by init. */
  volatile int pid, stage, error, status;
  volatile bool main_done;
  bool over; /* the launcher no longer uses this launch */
  char required[LAUNCH_REQUIRED]; /* with ENOENT for an existing program: its missing interpreter or loader */
  /* Set by init at any time. */
  volatile bool hold;
  char candidate[LAUNCH_PATH] __attribute__((aligned(8))); /* init keeps its list of free launches here */
  char program_stack[STACK_SIZE] __attribute__((aligned(64)));
};

/* Closes the descriptors that `ends` still has. */
void launch_close_ends(struct launch *launch);

/* A process that runs one program after another for init. It shares init's descriptor table. */
struct launcher {
  pid_t pid;
  int notify_fd; /* gets the address of a launch when its program runs (notify_start), ends while held, and when the launch is over */
  int called;    /* futex: 1 from launcher_call until it is taken up */
  struct launch *launch;
  /* Init's own. */
  struct exec *exec; /* the exec of its launch; NULL: it waits, or ends */
  struct launcher *next;
  char stack[STACK_SIZE] __attribute__((aligned(64)));
};

/* Starts the process of a launcher, which waits for its first launch. Returns its pid, or -errno. Set `notify_fd` before. */
int launcher_start(struct launcher *launcher);
/* Gives a launch to the launcher; NULL: ends it. */
void launcher_call(struct launcher *launcher, struct launch *launch);

#endif
