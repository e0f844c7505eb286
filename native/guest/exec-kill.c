#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "exec.h"
#include "process-tree.h"

#define KILL_PAUSE_MAX_MS 50
#define CROWD 64 /* users' processes in all guests that make a guest crowded */
#define FEW 8
#define PATIENT_ROUNDS 5

/*
 * Against a tree that forks faster than it is found: no process of any guest can fork until the tree is gone. Done only if the
 * guests are crowded or the tree does not shrink; otherwise a tree is found and killed in two or three rounds.
 */
static void stop_forks(struct init *in, bool stop) {
  if (in->limit_fd < 0 || in->forks_stopped == stop) return;
  char text[16];
  int size = snprintf(text, sizeof text, "%u", stop ? 1 : in->max_processes);
  if (pwrite(in->limit_fd, text, (size_t)size, 0) == size) in->forks_stopped = stop;
}

static bool crowded(const struct init *in) {
  char text[16];
  ssize_t n = in->current_fd < 0 ? 0 : pread(in->current_fd, text, sizeof text - 1, 0);
  if (n <= 0) return false;
  text[n] = 0;
  return atoi(text) > CROWD;
}

void kill_round(struct init *in, int64_t now) {
  /* A crowd would not be found in time, or the tree does not shrink. */
  if (crowded(in) || (in->kill_rounds >= PATIENT_ROUNDS && in->kill_alive > FEW)) stop_forks(in, true);
  in->kill_rounds++;
  int busy = 0, alive = 0;
  for (struct exec *e = in->execs; e; e = e->next) {
    if (!e->killing) continue;
    bool running = !e->launch->main_done && e->launch->pid > 0;
    if (running) {
      /* Most trees are one process group, which dies by one signal; other processes are found below the launcher. */
      kill(-e->launch->pid, SIGKILL);
      kill(e->launch->pid, SIGKILL);
    }
    busy += running || e->launcher;
    if (!e->launcher) continue;
    /* Layer by layer: children of the dead become the launcher's. Reading all processes would take seconds in a crowd. */
    int children = children_signal(in->proc_fd, e->launcher->pid, SIGKILL);
    alive += children >= 0 ? children : tree_signal(in->proc_fd, e->launcher->pid, SIGKILL);
  }
  /* Repeat at once while there are more than before, otherwise after growing pauses. */
  if (alive > in->kill_alive) in->kill_pause_ms = 0;
  else if (in->forks_stopped) in->kill_pause_ms = 2;
  else in->kill_pause_ms = in->kill_pause_ms < KILL_PAUSE_MAX_MS / 2 ? in->kill_pause_ms * 2 + 1 : KILL_PAUSE_MAX_MS;
  in->kill_alive = alive;
  in->next_kill_ms = busy ? now + in->kill_pause_ms : 0;
  if (!busy) stop_forks(in, false);
}

void exec_kill(struct init *in, struct exec *e) {
  if (e->exit_sent && !e->launcher) return;
  e->launch->hold = true; /* the launcher stays until the tree is empty */
  e->killing = true;
  in->kill_pause_ms = in->kill_alive = in->kill_rounds = 0;
  in->next_kill_ms = now_ms();
}
