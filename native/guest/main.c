/*
 * cloche-guest: the program that makes a guest for the agent, and the small programs that the agent runs inside one.
 *
 *     agent ──fd 3──▶ init (pid 1 of the guest) ──▶ users' programs
 *       └────fd 4──▶ files (this process; in the guest's root, but not in its pid namespace, so that no user can signal it)
 *
 * When either of the two ends, the other ends too. The end of init ends every process of the guest.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "confine.h"
#include "files.h"
#include "grow.h"
#include "guest.h"
#include "init.h"
#include "listen.h"
#include "memory.h"
#include "sys.h"
#include "tar.h"
#include "temporary.h"
#include "wire.h"

#define ARGS_MAX 256
#define INIT_FD 3
#define FILES_FD 4

_Noreturn static void fatal(const char *step) {
  int error = errno;
  struct bytes b = {0};
  size_t start = frame_open(&b, F_FATAL, 0, 0);
  put_u32(&b, (uint32_t)error);
  put_string(&b, step);
  frame_close(&b, start);
  write_all(INIT_FD, b.data, b.size);
  _exit(72);
}

static bool read_options(int count, char **args, struct guest_options *o) {
  for (int i = 0; i + 1 < count; i += 2) {
    char *value = args[i + 1];
    if (strcmp(args[i], "--root") == 0) {
      o->root = value;
    } else if (strcmp(args[i], "--hostname") == 0) {
      o->hostname = value;
    } else if (strcmp(args[i], "--tmpfs") == 0 && o->tmpfs_count < MOUNTS_MAX) {
      o->tmpfs[o->tmpfs_count++] = value;
    } else if (strcmp(args[i], "--max-processes") == 0) {
      o->max_processes = (unsigned)strtoul(value, NULL, 10);
    } else if (strcmp(args[i], "--memory-guard") == 0) {
      o->memory_guard = strcmp(value, "on") == 0;
    } else if (strcmp(args[i], "--container") == 0) {
      o->container = strcmp(value, "on") == 0;
    } else if (strcmp(args[i], "--user-namespace") == 0) {
      o->user_namespace = strcmp(value, "on") == 0;
    } else if ((strcmp(args[i], "--bind") == 0 || strcmp(args[i], "--bind-ro") == 0) && o->mount_count < MOUNTS_MAX) {
      char *middle = strchr(value, ':');
      if (!middle) return false;
      *middle = 0;
      o->mounts[o->mount_count++] = (struct guest_mount){value, middle + 1, args[i][6] == '-'};
    } else {
      return false;
    }
  }
  return count % 2 == 0 && o->root;
}

/* For a guest started ahead: the first frame brings its options. Until then it has only the agent's own root. */
static int await_options(char *args[ARGS_MAX]) {
  static struct feed feed; /* never freed: the options point into it */
  struct frame frame;
  for (int taken; (taken = take_frame(&feed, &frame)) != 1;) {
    if (taken < 0) return -1;
    size_t room;
    uint8_t *at = feed_room(&feed, &room);
    ssize_t n = read(INIT_FD, at, room);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(0); /* the agent no longer needs this guest */
    feed.size += (size_t)n;
  }
  if (frame.type != F_GUEST || feed.start != feed.size) return -1;
  struct cursor c = cursor_of(&frame);
  uint32_t count = take_u32(&c);
  if (count > ARGS_MAX) return -1;
  for (uint32_t i = 0; i < count; i++) args[i] = take_string(&c);
  return c.bad ? -1 : (int)count;
}

static int run_guest(int argc, char **argv) {
  char *args[ARGS_MAX], **options_at = argv + 2;
  int count = argc - 2;
  struct guest_options options = {0};
  /* Keep no descriptor of the agent: only our two sockets, our own image, and /dev/null as 0, 1 and 2. */
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) fatal("open /dev/null");
  dup2(null, 0);
  dup2(null, 1);
  dup2(null, 2);
  fcntl(INIT_FD, F_SETFD, FD_CLOEXEC);
  fcntl(FILES_FD, F_SETFD, FD_CLOEXEC);
  syscall(SYS_close_range, 5, LAST_FD, 0);
  int self = open("/proc/self/exe", O_PATH | O_CLOEXEC);
  if (self < 0) fatal("open the program itself");
  prctl(PR_SET_DUMPABLE, 0);
  /* A signal to the agent's process group must not end this process: it ends when the agent is gone, and removes the cgroup. */
  setsid();
  clearenv();
  /* Programs get the signal dispositions of a fresh process, although the agent's runtime ignores some. */
  for (int signal = 1; signal <= 64; signal++) sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);

  if (count == 0) {
    options_at = args;
    count = await_options(args);
  }
  if (!read_options(count, options_at, &options)) {
    errno = EINVAL;
    fatal("options");
  }
  /* The agent's procfs shows the processes of all guests. Init closes it before it runs any program. */
  bool outside = options.memory_guard || options.user_namespace;
  int proc = outside ? open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  struct memory_bell *bell = proc < 0 || !options.memory_guard ? NULL : memory_bell_make();
  struct process_limit limit;
  int hidden;
  const char *failed = guest_enter(&options, &limit, &hidden);
  if (failed) fatal(failed);
  int alive[2], sync[2], filled[2];
  if (pipe2(alive, O_CLOEXEC) < 0 || pipe2(filled, O_CLOEXEC) < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync) < 0)
    fatal("pipe");
  pid_t init = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
  if (init < 0) fatal("clone init");
  if (init == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(alive[1]);
    close(filled[1]);
    close(FILES_FD);
    close(sync[0]);
    if (proc >= 0) close(proc);
    /* The parent may have died before the prctl above: then its end of the pipe is closed. */
    fcntl(alive[0], F_SETFL, O_NONBLOCK);
    char byte;
    if (read(alive[0], &byte, 1) == 0) _exit(0);
    close(alive[0]);
    failed = guest_mount_proc();
    if (!failed && options.user_namespace) {
      init_raise_priority(); /* not allowed any more after confine_enter_namespaces */
      failed = confine_proc();
      if (!failed) failed = confine_enter_namespaces(sync[1], &limit, hidden);
    }
    if (failed) fatal(failed);
    close(sync[1]);
    if (limit.parent_fd >= 0) close(limit.parent_fd);
    if (hidden >= 0) close(hidden);
    /* Users see this process, but must not see in its arguments where the agent keeps the disk. */
    char *end = argv[argc - 1] + strlen(argv[argc - 1]);
    memset(argv[0], 0, (size_t)(end - argv[0]));
    snprintf(argv[0], (size_t)(end - argv[0]), "cloche");
    setsid();
    init_serve(INIT_FD, self, &limit, bell, filled[0]);
  }
  close(sync[1]);
  if (options.user_namespace && (failed = confine_follow(sync[0], proc, init, &hidden))) fatal(failed);
  close(sync[0]);
  close(INIT_FD);
  close(self);
  close(alive[0]);
  close(filled[0]);
  int current = limit.current_fd;
  limit.current_fd = -1;
  process_limit_close(&limit);
  /*
   * A container leaves the cgroup to the users' guest, which is held by the descriptors that it has of it. gVisor, where the guard runs,
   * keeps 5 KB of each removed cgroup in every memory image: leave the cgroup for the next guest.
   */
  if ((options.container || options.memory_guard) && limit.parent_fd >= 0) {
    close(limit.parent_fd);
    limit.parent_fd = -1;
  }
  temporary_hide_in(hidden);
  struct memory_guard guard = {bell, proc, current, limit.asked};
  files_hello(FILES_FD);
  /* The agent goes on meanwhile. Programs and file requests wait: init until this end of the pipe is closed. */
  guest_fill_run();
  close(filled[1]);
  files_serve(init, &limit, bell ? &guard : NULL);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "guest") == 0) return run_guest(argc, argv);
  if (strcmp(mode, "limit-proc") == 0) return limit_proc() == 0 ? 0 : 1;
  if (strcmp(mode, "listen") == 0 && argc > 2) return listen_and_run(argc, argv);
  if (strcmp(mode, "set-clock") == 0 && argc == 3) return set_clock(argv[2]);
  if (strcmp(mode, "grow-disk") == 0 && argc == 4) return grow_disk(argv[2], argv[3]);
  if (strcmp(mode, "tar-create") == 0 && argc == 3) return tar_create(argv[2]);
  if (strcmp(mode, "tar-extract") == 0 && argc == 3) return tar_extract(argv[2]);
  fprintf(stderr,
          "usage: cloche-guest guest [--root DIR [--tmpfs PATH]... [--bind SOURCE:TARGET]... [--hostname NAME] [--max-processes N] "
          "[--memory-guard on] [--user-namespace on] [--container on]] | listen PORT -- PROGRAM... | limit-proc | set-clock MS | grow-disk "
          "PATH DEVICE | "
          "tar-create DIR | "
          "tar-extract DIR\n");
  return 64;
}
