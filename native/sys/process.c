/* Starts programs from a small process, and reaps orphans. */
#include "cloche-sys.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Programs with a waiting request. The reaper collects every child and passes the status of a listed one on here. */
struct waiting {
  pid_t pid;
  int status;
  int exited;
  struct waiting *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct waiting *first = NULL;

static void *reap(void *unused) {
  sigset_t set;
  (void)unused;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (;;) {
    int status;
    pid_t pid;
    pthread_mutex_lock(&lock);
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      for (struct waiting *entry = first; entry; entry = entry->next) {
        if (entry->pid != pid) continue;
        entry->status = status;
        entry->exited = 1;
        pthread_cond_broadcast(&changed);
      }
    }
    pthread_mutex_unlock(&lock);
    sigwaitinfo(&set, NULL);
  }
  return NULL;
}

void process_start_reaper(void) {
  sigset_t set;
  pthread_t thread;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_create(&thread, NULL, reap, NULL);
  pthread_detach(thread);
}

static int spawn(pid_t *pid, const char *directory, const char *out, const char *err, char **argv) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, *out ? out : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, *err ? err : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (*directory) posix_spawn_file_actions_addchdir_np(&actions, directory);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  int error = posix_spawnp(pid, argv[0], &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

/* Arguments: network namespace ("" for ours), directory, stdout file, stderr file, deadline in ms, program and its arguments. */
int process_exec(struct answer *answer, char **arguments, int count) {
  const char *netns = arguments[0];
  long deadline_ms = strtol(arguments[4], NULL, 10);
  struct waiting entry = {0, 0, 0, NULL};
  struct timespec until;
  if (count < 6) return fail(answer, EINVAL, "exec needs a program");
  /* This thread serves only this request, so it may move; the child starts in its namespace. */
  if (*netns) {
    int fd = open(netns, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) return fail(answer, errno, "entering %s", netns);
    close(fd);
  }
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += deadline_ms / 1000;
  until.tv_nsec += (deadline_ms % 1000) * 1000000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  pthread_mutex_lock(&lock);
  int error = spawn(&entry.pid, arguments[1], arguments[2], arguments[3], arguments + 5);
  if (error) {
    pthread_mutex_unlock(&lock);
    return fail(answer, error, "starting %s", arguments[5]);
  }
  entry.next = first;
  first = &entry;
  int killed = 0;
  while (!entry.exited) {
    if (killed) pthread_cond_wait(&changed, &lock);
    else if (pthread_cond_timedwait(&changed, &lock, &until) == ETIMEDOUT && !entry.exited) {
      kill(-entry.pid, SIGKILL);
      killed = 1;
    }
  }
  struct waiting **link = &first;
  while (*link != &entry) link = &(*link)->next;
  *link = entry.next;
  pthread_mutex_unlock(&lock);
  if (killed) return fail(answer, ETIMEDOUT, "%s was not finished after %ld ms", arguments[5], deadline_ms);
  int code = WIFEXITED(entry.status) ? WEXITSTATUS(entry.status) : 128 + WTERMSIG(entry.status);
  return done(answer, "%d %d", (int)entry.pid, code);
}
