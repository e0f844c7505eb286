/*
 * For a guest that shares the agent's kernel (a virtual machine): its init, and so every program of a user, lives in its own user
 * namespace. Root there has power over the guest's namespaces and the disk's files, and over nothing else of the kernel: no
 * module, no device, no raw disk, no event of another's file, no setting outside the namespaces.
 *
 *     file server ──clone(NEWPID)──▶ init: procfs, confine_proc, confine_enter_namespaces ─┐ unshared
 *          └──────────── confine_follow: maps, same mounts and host name ◀────┘
 *
 * User and group ids are mapped to themselves, so that they mean the same to the file server outside and on the disk. Most files of
 * /proc and /sys are open to user 0 without any capability; they are therefore made read-only or hidden, by mounts that are
 * locked together. The guest's root cannot undo them nor mount another procfs, not even in a further user namespace.
 */
#ifndef CLOCHE_CONFINE_H
#define CLOCHE_CONFINE_H

#include <sys/types.h>

#include "guest.h"

/* Called in init, after procfs is mounted and before confine_enter_namespaces. NULL, or the step that failed. */
const char *confine_proc(void);
/* Called in init: enters the namespaces and waits until confine_follow has mapped the ids. `hidden`: see temporary.h, or -1. */
const char *confine_enter_namespaces(int sync, const struct process_limit *limit, int hidden);
/* Called in the file server, outside the user namespace. `proc`: the agent's procfs. `hidden` becomes the same place in init's mounts. */
const char *confine_follow(int sync, int proc, pid_t init, int *hidden);

#endif
