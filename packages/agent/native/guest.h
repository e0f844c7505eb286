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
};

/* The step that failed, for F_FATAL. NULL when the caller's root is now the guest's and nothing of the old one can be reached. */
const char *guest_enter(const struct guest_options *options);

/* Mounts procfs of the calling process's pid namespace. */
const char *guest_mount_proc(void);

#endif
