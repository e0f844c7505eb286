/*
 * The guest's pid 1: reaps orphans and runs execs for the agent, all from one event loop that never blocks on a user.
 *
 *     RUNNING ──program ended──▶ DRAINING ──what it wrote was sent──▶ EXIT sent ─┬─▶ freed (children left behind live on)
 *        │                                                                       └─hold─▶ HELD ──tree empty──▶ ENDED sent, freed
 *        └─ KILL: signal the tree until it is empty, then as above
 *
 * It ends when the agent closes its end, and the kernel then kills everything in the pid namespace.
 */
#ifndef CLOCHE_INIT_H
#define CLOCHE_INIT_H

#include "guest.h"
#include "memory.h"

/* Called by init_serve; earlier by a process that is about to lose the right to raise its priority. */
void init_raise_priority(void);

/*
 * Serves on `agent_fd`, a stream socket. Programs enter the cgroup of `limit`; `bell` (or NULL) is held for each. Requests wait until the
 * other end of the pipe `run_fd` is closed. Does not return.
 */
_Noreturn void init_serve(int agent_fd, int self_fd, struct process_limit *limit, struct memory_bell *bell, int run_fd);

#endif
