/*
 * For a guest whose kernel is the agent's too (a virtual machine): its init, and so every program of a user, lives in a user
 * namespace of its own. Root there is root of the guest's namespaces and of the disk's files, and of nothing else of the
 * kernel: no module, no device, no raw disk, no event of another's file, no setting outside the namespaces.
 *
 *     file server ──clone(NEWPID)──▶ init: procfs, confine_proc, confine_self ─┐ unshared
 *          └──────────── confine_follow: maps, same mounts and host name ◀────┘
 *
 * User and group ids are mapped to themselves, so that the file server outside and the disk mean the same by them. What the
 * kernel lets user 0 do without any capability (most files of /proc and /sys) is therefore read-only or hidden, by mounts that
 * are locked together: the guest's root cannot lift them, nor mount another procfs, in a user namespace of its own either.
 */
#ifndef CLOCHE_CONFINE_H
#define CLOCHE_CONFINE_H

#include <sys/types.h>

#include "guest.h"

/* In init, with its procfs mounted, before confine_self. The step that failed, or NULL. */
const char *confine_proc(void);
/* In init: into the namespaces, once confine_follow has mapped them. `hidden` is temporary.h's place, or -1. */
const char *confine_self(int sync, const struct process_limit *limit, int hidden);
/* In the file server, outside of them: `proc` is the agent's procfs; `hidden` becomes the same place in init's mounts. */
const char *confine_follow(int sync, int proc, pid_t init, int *hidden);

#endif
