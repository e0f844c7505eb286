/*
 * The memory guard, for a machine that ends when memory runs out (gVisor): kills users' processes before that.
 * A thread in the file server of the users' guest; it watches all guests of the agent.
 */
#ifndef CLOCHE_MEMORY_H
#define CLOCHE_MEMORY_H

#include <stdbool.h>

#include "wire.h"

/* A page shared by file server and init, through which init wakes the guard: without programs the guard costs nothing. */
struct memory_bell {
  int rung; /* counts the growths of `held`; the guard waits on it as a futex */
  int asleep;
  int held; /* execs and containers: while there is one, the guard does not sleep, for its program may not be counted yet */
};

/* Call before init is made. NULL if there is no memory for it. */
struct memory_bell *memory_bell_make(void);
/* Called by init with 1 before it starts a program, and with -1 when that exec is over. `bell` may be NULL. */
void memory_bell_hold(struct memory_bell *bell, int more);

struct memory_guard {
  struct memory_bell *bell;
  int proc_fd;    /* procfs of the agent's pid namespace */
  int current_fd; /* pids.current of the users' cgroup, or -1 */
  unsigned asked_processes; /* the agent's limit of processes, before it is fitted to the memory */
};

/* Starts the thread; false if that fails. Before it kills a process, the guard reports it in a frame through `send`. */
bool memory_guard_start(const struct memory_guard *guard, void (*send)(struct bytes *frame));

#endif
