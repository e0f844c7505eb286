/* Init's keepers: which of them works for which exec, and which one waits. What a keeper itself does is exec-keeper.c. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "exec.h"

#define KEPT_KEEPERS 16 /* memory of those that ended, for new ones */

void keeper_forget(struct init *in, struct keeper *k) {
  for (struct keeper **at = &in->keepers; *at; at = &(*at)->next) {
    if (*at == k) {
      *at = k->next;
      break;
    }
  }
  if (in->idle_keeper == k) in->idle_keeper = NULL;
  if (in->free_keeper_count >= KEPT_KEEPERS) {
    munmap(k, sizeof *k);
    return;
  }
  k->next = in->free_keepers;
  in->free_keepers = k;
  in->free_keeper_count++;
}

/* A new keeper; NULL with errno. */
static struct keeper *make(struct init *in) {
  struct keeper *k = in->free_keepers;
  if (k) {
    in->free_keepers = k->next;
    in->free_keeper_count--;
  } else {
    k = mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (k == MAP_FAILED) return NULL;
  }
  memset(k, 0, offsetof(struct keeper, stack));
  k->notify_fd = in->notify_write;
  k->next = in->keepers;
  in->keepers = k;
  int r = keeper_start(k);
  if (r >= 0) {
    k->pid = r;
    return k;
  }
  keeper_forget(in, k);
  errno = -r;
  return NULL;
}

bool keeper_begin(struct init *in, struct exec *e) {
  struct keeper *k = in->idle_keeper ? in->idle_keeper : make(in);
  if (!k) return false;
  in->idle_keeper = NULL;
  k->exec = e;
  e->keeper = k;
  keeper_call(k, e->launch);
  return true;
}

void keeper_rest(struct init *in, struct keeper *k) {
  k->exec = NULL;
  if (in->idle_keeper) keeper_call(k, NULL);
  else in->idle_keeper = k;
}

void keeper_prepare(struct init *in) { in->idle_keeper = make(in); }

struct keeper *keeper_of(struct init *in, pid_t pid) {
  struct keeper *k = in->keepers;
  while (k && k->pid != pid) k = k->next;
  return k;
}
