/* Users' processes, as those of whom the guard (memory.h) may end some. */
#ifndef CLOCHE_CANDIDATES_H
#define CLOCHE_CANDIDATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernel-memory.h"
#include "process-tree.h"

/*
 * Killing smaller ones frees nothing: they are spared, so that somebody can clean up, unless memory grows nevertheless (one
 * fills a tmpfs). Then one at a time.
 */
#define WORTH_KILLING (4ull << 20)
/* Of those who were killed last: they take a moment to end. */
#define REMEMBERED 64

/* Whom to look for. */
struct search {
  pid_t agent;
  const struct kernel_ledger *kernel;
  const pid_t *killed; /* REMEMBERED of them */
};

struct candidate {
  const struct process *process;
  uint64_t in_kernel, bytes; /* bytes: all that would be freed */
  pid_t guest;
  uint32_t exec_id;
  uint64_t program; /* the same of all that one exec or service has started; of what outlived its exec, of all of one name */
  bool in_crowd;    /* of a program of more than CROWD processes */
};

/* What else a look at all processes tells. */
struct census {
  uint64_t agent_bytes;
  size_t dying;  /* killed by us, and there still */
  uint64_t dying_bytes;
  size_t ending; /* without any pages: killed by whoever else, or ending by itself */
};

/* Whether a process is none of the users'; `search`: a struct search. */
bool is_ours(const void *search, const struct process_list *list, const struct process *p);
/* Users' processes, those first that are worth killing, and of these the largest; `found` is the caller's to free. */
size_t candidates_of(const struct search *search, const struct process_list *list, struct candidate **found, struct census *census);
bool is_worth_killing(const struct candidate *c);
/* The program with the most processes and threads: the first of its `size` candidates. Sorts them anew. NULL: there are none. */
const struct candidate *crowd_of(struct candidate *all, size_t count, size_t *size);

#endif
