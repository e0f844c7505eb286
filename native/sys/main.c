/*
 * cloche-sys: the few kernel operations that Node cannot do (reflink, loop devices, mounts, namespaces), in one
 * small long-lived process, because each spawn from a big Node process costs milliseconds.
 *
 * One request a line on stdin: `id <TAB> operation <TAB> arguments…`, percent-encoded (%, tab, newline, bytes below 32).
 * One answer a line on stdout: `id <TAB> errno <TAB> text`; errno 0 is success. Requests run concurrently, each in its own
 * thread; answers come in the order in which they finish.
 *
 * The program ends when stdin ends (the service is gone), after the running operations, but at the latest after
 * GRACE_SECONDS. Signals to the terminal's group do not stop it. It is the subreaper of the programs that it starts, so an
 * orphaned gofer is reaped at once.
 */
#include "cloche-sys.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_ARGUMENTS 512
#define MAX_RUNNING 256
#define STACK_BYTES (256 * 1024)
#define GRACE_SECONDS 30

static pthread_mutex_t output_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t running_changed = PTHREAD_COND_INITIALIZER;
static int running = 0;

int fail(struct answer *answer, int error, const char *format, ...) {
  va_list list;
  answer->error = error ? error : EIO;
  va_start(list, format);
  vsnprintf(answer->text, sizeof answer->text, format, list);
  va_end(list);
  return -1;
}

int done(struct answer *answer, const char *format, ...) {
  va_list list;
  answer->error = 0;
  va_start(list, format);
  vsnprintf(answer->text, sizeof answer->text, format, list);
  va_end(list);
  return 0;
}

uint64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void reply(const char *id, const struct answer *answer) {
  /* In the worst case every byte of the text is encoded as three. */
  static char line[3 * sizeof answer->text + 256];
  pthread_mutex_lock(&output_lock);
  size_t used = (size_t)snprintf(line, 128, "%.64s\t%d\t", id, answer->error);
  for (const unsigned char *c = (const unsigned char *)answer->text; *c; c++) {
    if (*c < 32 || *c == '%') used += (size_t)sprintf(line + used, "%%%02X", *c);
    else line[used++] = (char)*c;
  }
  line[used++] = '\n';
  for (size_t sent = 0; sent < used;) {
    ssize_t wrote = write(1, line + sent, used - sent);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break; /* The service is gone; the operation still counts. */
    sent += (size_t)wrote;
  }
  pthread_mutex_unlock(&output_lock);
}

static int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

static void decode(char *text) {
  char *out = text;
  for (char *in = text; *in; in++) {
    if (*in == '%' && hex(in[1]) >= 0 && hex(in[2]) >= 0) {
      *out++ = (char)(hex(in[1]) * 16 + hex(in[2]));
      in += 2;
    } else *out++ = *in;
  }
  *out = 0;
}

static void run_operation(struct answer *answer, char **argv, int argc) {
  const char *name = argc > 0 ? argv[0] : "";
#define IS(op, arguments) (strcmp(name, op) == 0 && argc == (arguments) + 1)
  if (IS("ping", 0)) done(answer, "pong");
  else if (IS("clone", 3)) disk_clone(answer, argv[1], argv[2], argv[3]);
  else if (IS("sync", 1)) disk_sync(answer, argv[1]);
  else if (IS("sync-file", 1)) disk_sync_file(answer, argv[1]);
  else if (IS("attach", 5)) disk_attach(answer, argv[1], argv[2], argv[3], argv[4], argv[5]);
  else if (IS("detach", 2)) disk_detach(answer, argv[1], argv[2]);
  else if (IS("replace", 2)) disk_replace(answer, argv[1], argv[2]);
  else if (IS("trim", 1)) disk_trim(answer, argv[1]);
  else if (IS("extents", 1)) disk_extents(answer, argv[1]);
  else if (IS("chunk-map", 4)) disk_chunk_map(answer, argv[1], argv[2], argv[3], argv[4]);
  else if (IS("netns-add", 1)) netns_add(answer, argv[1]);
  else if (IS("netns-delete", 1)) netns_delete(answer, argv[1]);
  else if (IS("slot-link", 7)) slot_link(answer, argv + 1);
  else if (IS("slot-prepare", 4)) slot_prepare(answer, argv[1], argv[2], argv[3], argv[4]);
  else if (IS("slot-unlink", 4)) slot_unlink(answer, argv[1], argv[2], argv[3], argv[4]);
  else if (strcmp(name, "set-elements") == 0 && argc >= 3) set_elements(answer, argv + 1, argc - 1);
  else if (strcmp(name, "exec") == 0 && argc >= 6) process_exec(answer, argv + 1, argc - 1);
  else fail(answer, ENOSYS, "no operation %s with %d arguments", name, argc - 1);
#undef IS
}

static void *serve_request(void *opaque) {
  char *line = opaque;
  char *argv[MAX_ARGUMENTS + 1];
  int argc = 0;
  char *rest = line;
  char *id = strsep(&rest, "\t");
  struct answer answer = {0, ""};
  while (rest && argc < MAX_ARGUMENTS) {
    argv[argc] = strsep(&rest, "\t");
    decode(argv[argc++]);
  }
  argv[argc] = NULL;
  if (rest) fail(&answer, E2BIG, "more than %d arguments", MAX_ARGUMENTS);
  else run_operation(&answer, argv, argc);
  reply(id, &answer);
  free(line);
  pthread_mutex_lock(&running_lock);
  running--;
  pthread_cond_signal(&running_changed);
  pthread_mutex_unlock(&running_lock);
  return NULL;
}

int main(void) {
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  pthread_attr_t attributes;
  signal(SIGPIPE, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  process_start_reaper();
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);

  while ((length = getline(&line, &capacity, stdin)) > 0) {
    pthread_t thread;
    if (line[length - 1] == '\n') line[length - 1] = 0;
    pthread_mutex_lock(&running_lock);
    while (running >= MAX_RUNNING) pthread_cond_wait(&running_changed, &running_lock);
    running++;
    pthread_mutex_unlock(&running_lock);
    char *copy = strdup(line);
    if (!copy || pthread_create(&thread, &attributes, serve_request, copy) != 0) {
      fprintf(stderr, "cloche-sys: out of memory or threads\n");
      return 1;
    }
  }
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += GRACE_SECONDS;
  pthread_mutex_lock(&running_lock);
  while (running > 0) {
    if (pthread_cond_timedwait(&running_changed, &running_lock, &until) == ETIMEDOUT) break;
  }
  /* No return, which would run exit handlers under threads that still run. */
  _exit(0);
}
