/*
 * The memory guard, for a machine whose end of memory ends the machine (gVisor): ends users' processes before that.
 * A thread of the file server of the users' guest; it watches all guests of the agent.
 */
#ifndef CLOCHE_MEMORY_H
#define CLOCHE_MEMORY_H

#include <stdbool.h>

#include "wire.h"

/* One page that the file server shares with init, so that a guard that waits for a program costs nothing until there is one. */
struct memory_bell {
  int rung; /* counts programs started; what the guard waits on */
  int asleep;
};

/* Before init is made: NULL without a guard, or where there is no memory for it. */
struct memory_bell *memory_bell_make(void);
/* By init, when it starts a program. Takes NULL. */
void memory_bell_ring(struct memory_bell *bell);

struct memory_guard {
  struct memory_bell *bell;
  int proc_fd;    /* procfs of the agent's pid namespace */
  int current_fd; /* pids.current of the users' cgroup, or -1 */
  unsigned asked_processes; /* how many may run, however much memory there is */
};

/* Starts the thread; false when it cannot. A process that it is about to kill is told by `send`, as a frame. */
bool memory_guard_start(const struct memory_guard *guard, void (*send)(struct bytes *frame));

#endif
