/*
 * One launch: what a keeper and its program need, in memory that init, the keeper and (until execve) the program share.
 *
 *     init ──clone(VM)──▶ keeper ──clone(VM|VFORK)──▶ program ──execve──▶ ...
 *
 * The keeper is a child subreaper: whatever the program starts, setsid children included, stays below it until it ends, so
 * the tree of one exec can be found and killed, and nothing else. It ends with the program (children left in the
 * background then belong to init), or with the last of the tree when `hold` is set.
 */
#ifndef CLOCHE_LAUNCH_H
#define CLOCHE_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STACK_SIZE 16384
#define LAUNCH_PATH 8192
#define GROUPS_MAX 256
/* Of a keeper's name; the id of its exec follows in eight hexadecimal digits. */
#define KEEPER_NAME "cloche-"

struct launch {
  /* Set by init before the keeper starts. */
  char **argv;
  char **envp;
  const char *path; /* PATH of the request; NULL when argv[0] has a slash */
  const char *cwd;  /* NULL: home, else "/" */
  const char *home;
  char name[16]; /* of the keeper */
  bool switch_user, pty, self, notify_start;
  bool spared; /* init is one that the kernel never ends for lack of memory: the program must not be */
  uid_t uid;
  gid_t gid;
  int group_count;
  gid_t groups[GROUPS_MAX];
  int stdio[3], notify_fd, self_fd, procs_fd;
  /* Set by keeper and program, read by init. */
  volatile int pid, stage, error, status;
  volatile bool main_done;
  /* Set by init at any time. */
  volatile bool hold;
  char candidate[LAUNCH_PATH] __attribute__((aligned(8))); /* init keeps its list of free launches here */
  char keeper_stack[STACK_SIZE] __attribute__((aligned(64)));
  char program_stack[STACK_SIZE] __attribute__((aligned(64)));
};

/* Starts the keeper; its pid, or -errno. `notify_fd` gets the address of the launch when the program runs (notify_start) and when it ended while held. */
int launch_start(struct launch *launch);

#endif
