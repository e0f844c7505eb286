/* Init's launchers: assigns them to execs and keeps one waiting. launcher.c is the code that a launcher runs. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "exec.h"

#define KEPT_LAUNCHERS 16 /* memory of ended launchers, kept for new ones */

void launcher_forget(struct init *in, struct launcher *k) {
  for (struct launcher **at = &in->launchers; *at; at = &(*at)->next) {
    if (*at == k) {
      *at = k->next;
      break;
    }
  }
  if (in->idle_launcher == k) in->idle_launcher = NULL;
  if (in->free_launcher_count >= KEPT_LAUNCHERS) {
    munmap(k, sizeof *k);
    return;
  }
  k->next = in->free_launchers;
  in->free_launchers = k;
  in->free_launcher_count++;
}

/* A new launcher; NULL with errno. */
static struct launcher *make(struct init *in) {
  struct launcher *k = in->free_launchers;
  if (k) {
    in->free_launchers = k->next;
    in->free_launcher_count--;
  } else {
    k = mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (k == MAP_FAILED) return NULL;
  }
  memset(k, 0, offsetof(struct launcher, stack));
  k->notify_fd = in->notify_write;
  k->next = in->launchers;
  in->launchers = k;
  int r = launcher_start(k);
  if (r >= 0) {
    k->pid = r;
    return k;
  }
  launcher_forget(in, k);
  errno = -r;
  return NULL;
}

bool launcher_begin(struct init *in, struct exec *e) {
  struct launcher *k = in->idle_launcher ? in->idle_launcher : make(in);
  if (!k) return false;
  in->idle_launcher = NULL;
  k->exec = e;
  e->launcher = k;
  launcher_call(k, e->launch);
  return true;
}

void launcher_rest(struct init *in, struct launcher *k) {
  k->exec = NULL;
  if (in->idle_launcher) launcher_call(k, NULL);
  else in->idle_launcher = k;
}

void launcher_prepare(struct init *in) { in->idle_launcher = make(in); }

struct launcher *launcher_of(struct init *in, pid_t pid) {
  struct launcher *k = in->launchers;
  while (k && k->pid != pid) k = k->next;
  return k;
}
