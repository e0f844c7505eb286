/*
 * Memory that gVisor's kernel, the sentry, holds for users' programs: full sockets and pipes, messages, descriptors in flight,
 * events, timers. No process has it in its pages, and the kernel does not tell whose it is. The ledger assigns growth to the
 * processes that made the kernel work meanwhile.
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
  uint64_t garbage; /* of ended processes: the kernel frees it at its next collection, for which the host asks */
  int64_t entered_ms, checked_ms; /* times of the last entry and of the last look at work */
  /* Since the last entry: bytes of processes that ended and held much, and when the last of them ended. */
  uint64_t ended;
  int64_t ended_ms;
};

/* Bytes in use, with the kernel's own and with garbage not collected yet; 0: unknown, because this is not gVisor. */
uint64_t kernel_memory(int proc_fd);

/* Whether a process is ours, so that its work does not count. */
typedef bool (*kernel_spared)(const void *context, const struct process_list *list, const struct process *process);

/* Begins the ledger. Memory in use now is assigned to no process. */
void kernel_begin(struct kernel_ledger *ledger, int proc_fd);
/* One look: enters the change since the last entry, which may take 50 ms. Returns the bytes in use. */
uint64_t kernel_check(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context);
/* Turns the memory of ended processes into garbage. `list`: the present processes. */
void kernel_forget_ended(struct kernel_ledger *ledger, const struct process_list *list);
/* Bytes assigned to a process. */
uint64_t kernel_share(const struct kernel_ledger *ledger, pid_t pid);

#endif
