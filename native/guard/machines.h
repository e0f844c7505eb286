// Freezes and thaws every machine of one instance by its cgroup: the whole of a virtual machine, and of a gVisor sandbox its sentry
// alone, which is what makes the system calls (docs/adr/0003-freeze-the-sentry-alone.md).
//
//   v1   CGROUPS/freezer/cloche-TAG/UNIT/sentry   CGROUPS/freezer/cloche-TAG-vm/ID
//   v2   CGROUPS/cloche-TAG/UNIT/sentry           CGROUPS/cloche-TAG-vm/ID
//
// A UNIT `probe-...` is no machine: the host tries its runtime in it before it has a lease.
// A machine that dozes is frozen in a group below its `sentry` (packages/host/src/drivers/cgroup.ts). The kernel puts the two together:
// what dozed before dozes on when it is thawed here, and who rouses a machine that is frozen here only takes the doze from it.
#ifndef CLOCHE_GUARD_MACHINES_H
#define CLOCHE_GUARD_MACHINES_H

struct count {
  int machines, frozen;
};

// Directory descriptors of the two parents' tree. `tag`: of the instance. 0, or -1 with what failed on stderr.
int machines_open(const char *cgroups, const char *tag);
// Every machine that there is now. Repeatable: what is so already is left alone. Answers how many there are, and are frozen.
struct count machines_freeze(int frozen);
struct count machines_count(void);

#endif
