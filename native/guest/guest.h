/* Making a guest: a root directory with its own mount, ipc, uts and pid namespaces. */
#ifndef CLOCHE_GUEST_H
#define CLOCHE_GUEST_H

#include <stdbool.h>

#define MOUNTS_MAX 32

struct bind {
  char *source, *target;
  bool read_only;
};

struct guest_options {
  const char *root;
  const char *hostname; /* NULL: the sandbox's */
  const char *tmpfs[MOUNTS_MAX];
  int tmpfs_count;
  struct bind binds[MOUNTS_MAX];
  int bind_count;
  unsigned max_processes; /* 0: no limit */
  bool memory_guard;
  bool user_namespace; /* confine.h */
};

/* The pids cgroup that users' programs enter, so that a fork bomb ends at a limit of ours and not at the machine's, which kills the sandbox. */
struct process_limit {
  int procs_fd;  /* its cgroup.procs; -1 where the system has no such cgroup */
  int max_fd;    /* its pids.max */
  int current_fd; /* its pids.current */
  unsigned asked, max; /* as the agent says, and what fits the memory */
  int parent_fd; /* the directory it lies in */
  char name[32];
};

/*
 * The step that failed, for F_FATAL. NULL when the caller's root is now the guest's and nothing of the old one can be reached.
 * `hidden` becomes the place of temporary.h.
 */
const char *guest_enter(const struct guest_options *options, struct process_limit *limit, int *hidden);
/* `max`, or what the memory of this machine bears where that is fewer; 0 stays none. */
unsigned process_limit_fitting(unsigned max);
/* Closes all but parent_fd. */
void process_limit_close(struct process_limit *limit);
/* Removes the cgroup when nobody is in it any more. */
void process_limit_remove(const struct process_limit *limit);

/* For the agent: its procfs becomes one that remembers few names, where the kernel knows of such (Linux does not). Not 0: it failed. */
int limit_proc(void);

/* Mounts procfs of the calling process's pid namespace, such a one where it can. */
const char *guest_mount_proc(void);

/*
 * By init, in a guest out of a memory image in which nothing of a user's has run: procfs anew, which in gVisor has the boot id,
 * and what is mounted on tmpfs too where the machine's memory is another, for that decides its size. The step that failed, or NULL.
 */
const char *guest_renew(void);

#endif
