/*
 * One launch: what a launcher and its program need, in memory that init, the launcher and (until execve) the program share.
 *
 *     init ──clone(VM|FILES)──▶ launcher ──clone(VM|VFORK)──▶ program ──execve──▶ ...
 *
 * The launcher is a child subreaper: whatever the program starts, setsid children included, stays below it until it ends, so
 * the tree of one exec can be found and killed, and nothing else. With the program (when `hold` is set, with the last of
 * the tree) its launch is over. It then waits for the next one; where children are left in the background it ends instead,
 * and they belong to init.
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
/* Of a launcher's name; the id of its exec follows in eight hexadecimal digits. */
#define LAUNCHER_NAME "cloche-"
/* The name of one that waits: the agent (host-calls/activity.ts) does not count it among users' processes. */
#define WAITING_NAME LAUNCHER_NAME "waiting"

struct launch {
  /* Set by init before the launcher starts. */
  char **argv;
  char **envp;
  const char *path; /* PATH of the request; NULL when argv[0] has a slash */
  const char *cwd;  /* NULL: home, else "/" */
  const char *home;
  char name[16]; /* of the launcher */
  bool switch_user, pty, self, notify_start;
  bool spared; /* init is one that the kernel never ends for lack of memory: the program must not be */
  uid_t uid;
  gid_t gid;
  int group_count;
  gid_t groups[GROUPS_MAX];
  int stdio[3], self_fd, procs_fd;
  /* What the program's own ends of pipes or pty are in init: closed when it has them, by whoever comes to it first; -1: none. */
  volatile int ends[3];
  /* Set by launcher and program, read by init. */
  volatile int pid, stage, error, status;
  volatile bool main_done;
  bool over; /* the launcher will not look at it again */
  char required[LAUNCH_REQUIRED]; /* with ENOENT of a program that is there: the interpreter or loader that is not */
  /* Set by init at any time. */
  volatile bool hold;
  char candidate[LAUNCH_PATH] __attribute__((aligned(8))); /* init keeps its list of free launches here */
  char program_stack[STACK_SIZE] __attribute__((aligned(64)));
};

/* Closes what `ends` still has. */
void launch_close_ends(struct launch *launch);

/* A process of init's that runs one program after another. Of init's descriptors it uses init's own table. */
struct launcher {
  pid_t pid;
  int notify_fd; /* gets the address of a launch when its program runs (notify_start), when that ended while held, and when it is over */
  int called;    /* futex: 1 from launcher_call until it is taken up */
  struct launch *launch;
  /* Init's own. */
  struct exec *exec; /* whose launch it carries out; NULL: it waits, or ends */
  struct launcher *next;
  char stack[STACK_SIZE] __attribute__((aligned(64)));
};

/* Starts the process of a launcher, which waits for its first launch; its pid, or -errno. `notify_fd` is set. */
int launcher_start(struct launcher *launcher);
/* Has it carry out a launch; NULL: it ends. */
void launcher_call(struct launcher *launcher, struct launch *launch);

#endif
