#define _GNU_SOURCE
#include "parent.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

/*
 * Scheduling of the sandbox and all processes that it starts. Without it a machine is only slower.
 * SCHED_BATCH: a process that is woken does not preempt the process that woke it. With systrap a process of the guest calls mmap
 * and the like for the sentry, then reports the result in a loop until the sentry waits for it; if it preempted the sentry, it
 * kept the CPU until the next tick. Timer slack: the sentry's Go runtime sleeps as briefly as 20 us and systrap 1 ms, only to
 * check for work. A timer of the guest may be late by the slack.
 */
#define TIMER_SLACK_NS 1000000UL
static void yield_to_others(void) {
  struct sched_param none = {0};
  sched_setscheduler(0, SCHED_BATCH, &none);
  prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
}

static pid_t start(const char *out_file, char **argv) {
  pid_t pid = fork();
  if (pid != 0) return pid;
  int in = open("/dev/null", O_RDONLY);
  int out = open(out_file, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (in < 0 || out < 0) _exit(126);
  dup2(in, 0);
  dup2(out, 1);
  dup2(out, 2);
  close_range(3, ~0U, 0);
  yield_to_others();
  execv(argv[0], argv);
  _exit(127);
}

static int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

static void kill_children(void) {
  char path[64], text[4096];
  snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return;
  text[n] = 0;
  for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) kill(atoi(word), SIGKILL);
}

static void on_alarm(int signal) {
  (void)signal;
  kill_children();
  alarm(1);
}

static int write_line(const char *path, const char *format, int first, int second) {
  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  dprintf(fd, format, first, second);
  close(fd);
  return rename(temporary, path);
}

/* The background part: detached from the service's terminal and signals, so that the service's death does not reach the machine. */
static int stay(int report, const char *pid_file, const char *exit_file, const char *out_file, char **command_line) {
  setsid();
  signal(SIGHUP, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGALRM, on_alarm);
  int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; i++) dup2(null, i);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_t command = write_line(pid_file, "%d\n", getpid(), 0) ? -1 : start(out_file, command_line);
  if (command < 0) return 1;
  /* The gofer exits with 0 once its sentry is gone, and may be reaped first: report the first process that ended otherwise. */
  pid_t ended = 0;
  int reported = 0;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return ended && !reported ? write_line(exit_file, "%d %d\n", ended, 0) : 0;
    if (pid == command) {
      int code = exit_code(status);
      if (write(report, &code, sizeof code) < 0) errno = 0;
      close(report);
      if (code != 0) alarm(1);
      continue;
    }
    if (!ended) alarm(2);
    if (!reported && status != 0) reported = !write_line(exit_file, "%d %d\n", pid, status);
    ended = pid;
  }
}

int keep(int argc, char **argv) {
  if (argc < 5 || strcmp(argv[3], "--")) return complain("usage: keep PID_FILE EXIT_FILE OUT_FILE -- CMD..."), 2;
  int report[2], code;
  if (pipe2(report, O_CLOEXEC)) return complain("pipe"), 1;
  pid_t keeper = fork();
  if (keeper < 0) return complain("fork"), 1;
  if (keeper == 0) {
    close(report[0]);
    _exit(stay(report[1], argv[0], argv[1], argv[2], argv + 4));
  }
  close(report[1]);
  ssize_t n;
  while ((n = read(report[0], &code, sizeof code)) < 0 && errno == EINTR) continue;
  return n == sizeof code ? code : 1;
}

int run(int argc, char **argv) {
  if (argc < 3 || strcmp(argv[1], "--")) return complain("usage: run OUT_FILE -- CMD..."), 2;
  pid_t command = start(argv[0], argv + 2);
  int status;
  while (waitpid(command, &status, 0) < 0)
    if (errno != EINTR) return 1;
  return exit_code(status);
}
