#include "candidates.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher.h"

#define MIB (1ull << 20)
/* A program with more processes is a crowd: its processes are worth killing whatever their size. */
#define CROWD 64

/* The init of a process's guest, and in `top` its ancestor that is init's child; NULL: not a user's process. */
static const struct process *guest_of(const struct search *s, const struct process_list *list, const struct process *p,
                                      const struct process **top) {
  for (size_t hops = 0; p && hops <= list->count; hops++) {
    const struct process *parent = process_find(list, p->parent);
    const struct process *files = parent ? process_find(list, parent->parent) : NULL;
    if (files && files->parent == s->agent) {
      *top = p;
      return parent;
    }
    p = parent;
  }
  return NULL;
}

/* A launcher shares init's memory. A user's process with such a name has memory of its own. */
static bool is_launcher(const struct process *p, const struct process *init) {
  return p->parent == init->pid && strncmp(p->name, LAUNCHER_NAME, strlen(LAUNCHER_NAME)) == 0 && p->rss <= init->rss + MIB;
}

static bool was_killed(const struct search *s, pid_t pid) {
  for (size_t i = 0; i < REMEMBERED; i++)
    if (s->killed[i] == pid) return true;
  return false;
}

bool is_ours(const void *context, const struct process_list *list, const struct process *p) {
  const struct process *top = NULL, *init = guest_of(context, list, p, &top);
  return !init || is_launcher(p, init);
}

bool is_worth_killing(const struct candidate *c) { return c->bytes >= WORTH_KILLING || c->in_crowd; }

static int by_worth(const void *a, const void *b) {
  const struct candidate *left = a, *right = b;
  if (is_worth_killing(left) != is_worth_killing(right)) return is_worth_killing(right) ? 1 : -1;
  return left->bytes > right->bytes ? -1 : left->bytes < right->bytes;
}

static uint64_t program_of(const struct process *p, const struct process *top, uint32_t exec_id) {
  if (exec_id != 0) return (uint64_t)top->pid;
  uint64_t name = 0;
  memcpy(&name, p->name, sizeof name);
  return name | 1ull << 63;
}

static int by_program(const void *a, const void *b) {
  uint64_t left = ((const struct candidate *)a)->program, right = ((const struct candidate *)b)->program;
  return left < right ? -1 : left > right;
}

static void mark_crowds(struct candidate *all, size_t count) {
  qsort(all, count, sizeof *all, by_program);
  for (size_t from = 0, to; from < count; from = to) {
    for (to = from; to < count && all[to].program == all[from].program;) to++;
    for (size_t i = from; i < to; i++) all[i].in_crowd = to - from > CROWD;
  }
}

size_t candidates_of(const struct search *s, const struct process_list *list, struct candidate **found, struct census *census) {
  struct candidate *all = calloc(list->count + 1, sizeof *all);
  size_t count = 0;
  *census = (struct census){0};
  if (!all) _exit(70);
  for (size_t i = 0; i < list->count; i++) {
    const struct process *p = &list->items[i], *top = NULL;
    const struct process *init = guest_of(s, list, p, &top);
    if (!init) census->agent_bytes += p->rss;
    if (!init || p->dead || is_launcher(p, init)) continue;
    uint64_t in_kernel = kernel_share(s->kernel, p->pid);
    if (was_killed(s, p->pid)) {
      census->dying++;
      census->dying_bytes += p->rss + in_kernel;
    } else if (p->rss == 0 && in_kernel == 0) census->ending++;
    else {
      uint32_t id = is_launcher(top, init) ? (uint32_t)strtoul(top->name + strlen(LAUNCHER_NAME), NULL, 16) : 0;
      all[count++] = (struct candidate){p, in_kernel, p->rss + in_kernel, init->parent, id, program_of(p, top, id), false};
    }
  }
  mark_crowds(all, count);
  qsort(all, count, sizeof *all, by_worth);
  *found = all;
  return count;
}

const struct candidate *crowd_of(struct candidate *all, size_t count, size_t *size) {
  const struct candidate *crowd = NULL;
  unsigned most = 0;
  *size = 0;
  qsort(all, count, sizeof *all, by_program);
  for (size_t from = 0, to; from < count; from = to) {
    unsigned tasks = 0;
    for (to = from; to < count && all[to].program == all[from].program; to++) tasks += all[to].process->threads;
    if (tasks <= most) continue;
    most = tasks;
    crowd = all + from;
    *size = to - from;
  }
  return crowd;
}
