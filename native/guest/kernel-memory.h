/*
 * What gVisor's kernel, the sentry, holds in its own memory for users' programs: full sockets and pipes, messages, descriptors in
 * flight, events, timers. It is in nobody's pages, and the kernel does not say whose it is. The ledger counts it to whoever made
 * the kernel work while it grew.
 */
#ifndef CLOCHE_KERNEL_MEMORY_H
#define CLOCHE_KERNEL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "process-tree.h"

struct holder {
  pid_t pid;
  uint64_t system_ticks, user_ticks; /* as last seen */
  uint64_t bytes;
};

struct kernel_ledger {
  struct holder *holders; /* by pid */
  size_t count;
  uint64_t in_use;  /* at the last entry */
  uint64_t garbage; /* of processes that ended: the kernel gives it back when it next collects, which the host asks it to */
  int64_t entered_ms, looked_ms; /* the last entry; when work was last looked at */
  /* Since the last entry: what those held who ended, each much, and when the last of them did. */
  uint64_t ended;
  int64_t ended_ms;
};

/* Bytes in use, the kernel's own and what it has not collected yet included; 0 where it does not say: not gVisor. */
uint64_t kernel_memory(int proc_fd);

/* A process whose work is not counted: one of ours. */
typedef bool (*kernel_spared)(const void *context, const struct process_list *list, const struct process *process);

/* Begins with what is in use now, which is nobody's. */
void kernel_begin(struct kernel_ledger *ledger, int proc_fd);
/* One look: enters what has changed since the last entry, which may take 50 ms. Returns the bytes in use. */
uint64_t kernel_look(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context);
/* Forgets who ended since: `list` is of now. */
void kernel_forget_ended(struct kernel_ledger *ledger, const struct process_list *list);
/* Bytes counted to a process. */
uint64_t kernel_share(const struct kernel_ledger *ledger, pid_t pid);

#endif
