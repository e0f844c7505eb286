/*
 * Freezes and thaws every machine of one instance by its cgroup: a whole virtual machine, and of a gVisor sandbox only its sentry,
 * which makes all system calls (docs/adr/0003-freeze-the-sentry-alone.md).
 *
 *   v1   CGROUPS/freezer/cloche-TAG/UNIT/sentry   CGROUPS/freezer/cloche-TAG-vm/ID
 *   v2   CGROUPS/cloche-TAG/UNIT/sentry           CGROUPS/cloche-TAG-vm/ID
 *
 * A UNIT `probe-...` is no machine: the host tests its runtime there before it has a lease.
 * A dozing machine is frozen in a group below its `sentry` (packages/host/src/drivers/cgroup.ts) and runs only if both groups are thawed:
 * a machine that dozed still dozes after a thaw here, and rousing a machine that is frozen here ends only its doze.
 */
#ifndef CLOCHE_GUARD_MACHINES_H
#define CLOCHE_GUARD_MACHINES_H

struct count {
  int machines, frozen;
};

/* Opens the tree with the groups of both kinds. `tag`: the instance tag. 0, or -1 with the failure on stderr. */
int machines_open(const char *cgroups, const char *tag);
/* Freezes (1) or thaws (0) every present machine. Repeatable. Answers how many machines there are and how many are frozen. */
struct count machines_freeze(int frozen);
struct count machines_count(void);

#endif
