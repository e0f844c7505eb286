/* Users' processes as candidates that the memory guard (memory.h) may kill. */
#ifndef CLOCHE_CANDIDATES_H
#define CLOCHE_CANDIDATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernel-memory.h"
#include "process-tree.h"

/*
 * Killing smaller processes frees nothing. They are spared, so that a user can clean up, unless memory keeps growing (one of
 * them fills a tmpfs). Then they are killed one at a time.
 */
#define WORTH_KILLING (4ull << 20)
/* Processes killed last that are remembered: they take a moment to end. */
#define REMEMBERED 64

/* Parameters of a search. */
struct search {
  pid_t agent;
  const struct kernel_ledger *kernel;
  const pid_t *killed; /* REMEMBERED pids */
};

struct candidate {
  const struct process *process;
  uint64_t in_kernel, bytes; /* in_kernel: its kernel memory; bytes: all that its end would free */
  pid_t guest;
  uint32_t exec_id;
  uint64_t program; /* equal for all descendants of one exec or service, and for all of one name that outlived their exec */
  bool in_crowd;    /* its program has more than CROWD processes */
};

/* Other counts of a look at all processes. */
struct census {
  uint64_t agent_bytes;
  size_t dying;  /* killed by us and not gone yet */
  uint64_t dying_bytes;
  size_t ending; /* without any pages: killed by others, or exiting */
};

/* Whether a process is ours and not a user's; `search`: a struct search. */
bool is_ours(const void *search, const struct process_list *list, const struct process *p);
/* Users' processes: those worth killing first, the largest of these first. The caller frees `found`. */
size_t candidates_of(const struct search *search, const struct process_list *list, struct candidate **found, struct census *census);
bool is_worth_killing(const struct candidate *c);
/* The program with the most processes and threads: the first of its `size` candidates. Sorts `all` anew. NULL: no candidates. */
const struct candidate *crowd_of(struct candidate *all, size_t count, size_t *size);

#endif
