/* Makes a guest: a root directory with its own mount, ipc, uts and pid namespaces. */
#ifndef CLOCHE_GUEST_H
#define CLOCHE_GUEST_H

#include <stdbool.h>

#define MOUNTS_MAX 32

struct guest_mount {
  char *source, *target;
  bool read_only;
};

struct guest_options {
  const char *root;
  const char *hostname; /* NULL: the sandbox's */
  const char *tmpfs[MOUNTS_MAX];
  int tmpfs_count;
  struct guest_mount mounts[MOUNTS_MAX];
  int mount_count;
  unsigned max_processes; /* 0: no limit */
  bool memory_guard;
  bool container; /* not the users' guest */
  bool user_namespace; /* confine.h */
};

/* The pids cgroup of users' programs, so that a fork bomb meets our limit before the machine's, which would kill the sandbox. */
struct process_limit {
  int procs_fd;  /* its cgroup.procs; -1 if the system has no pids cgroup */
  int max_fd;    /* its pids.max */
  int current_fd; /* its pids.current */
  unsigned asked, max; /* asked: the agent's number; max: what also fits the memory */
  int parent_fd; /* its parent directory */
  char name[32];
};

/*
 * Changes the caller's root to the guest's and makes the old root unreachable. NULL, or the step that failed, for F_FATAL.
 * `hidden` becomes the hidden place of temporary.h.
 */
const char *guest_enter(const struct guest_options *options, struct process_limit *limit, int *hidden);
/* `max`, or fewer if this machine's memory has no room for as many; 0 stays 0: no limit. */
unsigned process_limit_fitting(unsigned max);
/* Closes all but parent_fd. */
void process_limit_close(struct process_limit *limit);
/* Removes the cgroup if it has no processes. */
void process_limit_remove(const struct process_limit *limit);

/* For the agent: replaces its procfs by one that caches few names, if the kernel has that option (Linux has not). Not 0: it failed. */
int limit_proc(void);

/* After guest_enter: fills the guest's /run, if it has one of its own. No path that users wrote leads out of their tree any more. */
void guest_fill_run(void);

/* Mounts procfs of the calling process's pid namespace; one that caches few names if the kernel can. */
const char *guest_mount_proc(void);

/*
 * Called by init of a guest restored from a memory image, before any program of a user has run. Mounts procfs anew, which in gVisor
 * holds the boot id. If the machine's memory has another size, mounts every tmpfs anew too. NULL, or the step that failed.
 */
const char *guest_renew(void);

#endif
