/*
 * The guard of a host's lease: freezes all machines of the instance when the lease's deadline passes, even while the host's program is
 * stopped, stuck or gone. One guard for each instance. The host starts it in the background; it outlives the host, and the next host
 * process adopts it.
 *
 *   guard DIRECTORY CGROUPS TAG
 *       Exits with 0 once a guard runs: this one in the background, or another that already holds DIRECTORY/lock.
 *
 *            deadline passes, or a deadline in the past is set
 *   running ───────────────────────────────────────────▶ frozen (all checked every 50 ms: machines started later are frozen, too)
 *      ▲                                                    │
 *      └──────────────── a later deadline is set ───────────┘
 *
 * Requests over DIRECTORY/socket, one a line. Each is answered when done, by one line: `PID NOW UNTIL MACHINES FROZEN`. Times are in ms
 * of CLOCK_BOOTTIME, which includes time that the computer was suspended: machines are frozen when it wakes.
 *   status
 *   until MS   sets the deadline, later or earlier than before
 *   end        ends the guard; frozen machines stay frozen
 *
 * DIRECTORY/until keeps the deadline for the next guard, should this one be killed. Without the file machines are frozen at once.
 * DIRECTORY/pid lets the host kill a guard that does not answer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "machines.h"

#define CLIENTS_MAX 8
#define LINE_MAX 64
#define LOOK_EVERY_MS 50
#define LOCK_TRIES 100
#define LOCK_PAUSE_US 10000
/* Before all other programs except the kernel's own. Freezing takes a millisecond, once. */
#define PRIORITY 10

struct client {
  int fd;
  size_t length;
  char line[LINE_MAX];
};

static int directory, listener, timer;
static struct client clients[CLIENTS_MAX];
static long long until;
/* Assumed at start: the guard before may have been killed before or after a freeze. */
static int is_frozen = 1;

static int complain(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  return 1;
}

static long long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Freezes or thaws according to the deadline, and sets the timer to it. */
static struct count follow_deadline(void) {
  int over = now_ms() >= until;
  struct itimerspec at = {.it_value = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000}};
  /* A time in the past would make the timer fire for ever; all zeros turn it off. */
  if (over) memset(&at, 0, sizeof at);
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
  struct count count = over || is_frozen ? machines_freeze(over) : machines_count();
  is_frozen = over;
  return count;
}

static void keep(const char *name, long long number) {
  int fd = openat(directory, "new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || dprintf(fd, "%lld\n", number) < 0 || renameat(directory, "new", directory, name)) complain(name);
  if (fd >= 0) close(fd);
}

static long long kept_deadline(void) {
  char text[LINE_MAX] = "";
  int fd = openat(directory, "until", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
  close(fd);
  long long kept = strtoll(text, NULL, 10);
  return kept < 0 ? 0 : kept;
}

static void end(void) {
  unlinkat(directory, "socket", 0);
  unlinkat(directory, "until", 0);
  unlinkat(directory, "pid", 0);
  exit(0);
}

static void serve(struct client *client, const char *line) {
  char *rest;
  struct count count;
  if (!strcmp(line, "end")) end();
  if (!strncmp(line, "until ", 6)) {
    long long wanted = strtoll(line + 6, &rest, 10);
    if (rest == line + 6 || *rest || wanted < 0) {
      shutdown(client->fd, SHUT_RDWR);
      return;
    }
    until = wanted;
    keep("until", until);
    count = follow_deadline();
  } else if (!strcmp(line, "status")) {
    count = machines_count();
  } else {
    shutdown(client->fd, SHUT_RDWR);
    return;
  }
  dprintf(client->fd, "%d %lld %lld %d %d\n", getpid(), now_ms(), until, count.machines, count.frozen);
}

static void serve_client(struct client *client) {
  ssize_t n = read(client->fd, client->line + client->length, LINE_MAX - client->length);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n > 0) client->length += (size_t)n;
  for (char *newline; n > 0 && (newline = memchr(client->line, '\n', client->length));) {
    size_t used = (size_t)(newline - client->line) + 1;
    *newline = 0;
    serve(client, client->line);
    memmove(client->line, client->line + used, client->length -= used);
  }
  if (n > 0 && client->length < LINE_MAX) return;
  close(client->fd);
  client->fd = -1;
  client->length = 0;
}

static void let_in(void) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  for (int i = 0; i < CLIENTS_MAX && fd >= 0; i++) {
    if (clients[i].fd >= 0) continue;
    clients[i].fd = fd;
    return;
  }
  if (fd >= 0) close(fd);
}

static void loop(void) {
  for (;;) {
    struct pollfd polled[CLIENTS_MAX + 2] = {{.fd = listener, .events = POLLIN}, {.fd = timer, .events = POLLIN}};
    for (int i = 0; i < CLIENTS_MAX; i++) polled[i + 2] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
    int ready = poll(polled, CLIENTS_MAX + 2, is_frozen ? LOOK_EVERY_MS : -1);
    /* Before requests are served: the computer may have been suspended until now. */
    if (is_frozen || now_ms() >= until) follow_deadline();
    if (ready <= 0) continue;
    if (polled[0].revents) let_in();
    for (int i = 0; i < CLIENTS_MAX; i++)
      if (polled[i + 2].revents && clients[i].fd == polled[i + 2].fd) serve_client(&clients[i]);
  }
}

static struct sockaddr_un address = {.sun_family = AF_UNIX};

static int listen_here(void) {
  listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  unlink(address.sun_path);
  umask(0077);
  return listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) ? -1 : listen(listener, CLIENTS_MAX);
}

static int is_served(void) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = connect(fd, (struct sockaddr *)&address, sizeof address);
  close(fd);
  return !failed;
}

/* 1: this guard holds the lock. 0: another guard holds it and serves. -1: neither in time. Waits, for a killed guard takes a moment to die. */
static int take_lock(void) {
  int lock = openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  for (int i = 0; i < LOCK_TRIES && lock >= 0; i++) {
    if (!flock(lock, LOCK_EX | LOCK_NB)) return 1;
    if (is_served()) return 0;
    usleep(LOCK_PAUSE_US);
  }
  return -1;
}

/* Ignores signals, is never swapped out nor killed when memory runs out, and runs in time under heavy load. Goes on where one is refused. */
static void stay(void) {
  struct sched_param priority = {.sched_priority = PRIORITY};
  setsid();
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (write(fd, "-1000", 5) < 0) errno = 0;
    close(fd);
  }
  keep("pid", getpid());
  mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
  sched_setscheduler(0, SCHED_FIFO, &priority);
}

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "usage: guard DIRECTORY CGROUPS TAG\n"), 2;
  directory = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return complain(argv[1]);
  if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", argv[1]) >= sizeof address.sun_path)
    return errno = ENAMETOOLONG, complain(argv[1]);
  int taken = take_lock();
  if (taken <= 0) return taken < 0 ? complain("lock") : 0;
  if (machines_open(argv[2], argv[3])) return 1;
  timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer < 0) return complain("timer");
  if (listen_here()) return complain("socket");
  for (int i = 0; i < CLIENTS_MAX; i++) clients[i].fd = -1;
  until = kept_deadline();
  follow_deadline();
  pid_t pid = fork();
  if (pid < 0) return complain("fork");
  if (pid > 0) return 0;
  stay();
  loop();
}
