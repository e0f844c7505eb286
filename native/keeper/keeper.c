// What the host needs of Linux that Node cannot do: a parent for a machine's processes that outlives the service, and
// the one uninterrupted sequence of a live snapshot. Static, no dependencies; compiled at set-up.
//
//   keeper keep PID_FILE EXIT_FILE OUT_FILE -- CMD...
//       Runs CMD (runsc create) and answers its exit code, while a copy of itself, named in PID_FILE, stays in the
//       background as subreaper of what CMD leaves behind. When a child of the machine ends later, EXIT_FILE appears
//       with "PID STATUS\n" (wait status), the others get 2 s and are killed, and the keeper ends: no zombie stays,
//       and runsc never has to poll for its gofer.
//   keeper run OUT_FILE -- CMD...
//       Runs CMD and answers its exit code.
//   keeper checkpoint SOCKET MOUNT_POINT DISK CLONE MARKER
//       pause; sync MOUNT_POINT and reflink DISK to CLONE; resume. Prints JSON.
//   keeper snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER [--stop] [--template]
//       The same, with the memory saved into IMAGE_DIR at the same instant.
//       --stop: does not resume, and everything is durable when it answers. On failure the machine goes on.
//       --template: pages of zeros are left out, which takes longer: for what is saved once and read into every machine.
//       Of both: MARKER exists, locked, while this runs, and stays, unlocked, where the machine stays paused.
//   keeper resume SOCKET MARKER
//       Waits for a snapshot under way, then resumes where MARKER says that the machine is paused. (The sentry does
//       not tell whether it is paused, and dies of a resume too many.)
//   keeper pause SOCKET MARKER
//       Pauses. MARKER stays, unlocked, until `resume`; where it is there before, this fails and does nothing.
//   keeper save SOCKET IMAGE_DIR
//       The memory alone, of a machine without a disk.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPLY_MAX 65536
#define CALL_TIMEOUT_S 300

static void complain(const char *format, ...) {
  int saved = errno;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, saved ? ": %s\n" : "\n", strerror(saved));
  errno = saved;
}

static long now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

// For the sandbox and whatever it starts; without either a machine is merely slower.
// SCHED_BATCH: what it wakes does not take the processor from what woke it. systrap has a process of the guest call mmap and
// the like for the sentry, and that one tells of the result in a loop until the sentry waits for it; where it had taken the
// sentry's processor, it kept it until the next tick. Timer slack: the sentry's Go runtime sleeps as briefly as 20 us and systrap
// 1 ms, only to look whether there is something to do. A timer of the guest may be that much late.
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

// In the background: away from the service's terminal and signals, whose death must not reach the machine.
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
  // The gofer ends with 0 once its sentry is gone, and may be seen first: then what ends next tells how the machine ended.
  pid_t ended = 0;
  int told = 0;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return ended && !told ? write_line(exit_file, "%d %d\n", ended, 0) : 0;
    if (pid == command) {
      int code = exit_code(status);
      if (write(report, &code, sizeof code) < 0) errno = 0;
      close(report);
      if (code != 0) alarm(1);
      continue;
    }
    if (!ended) alarm(2);
    if (!told && status != 0) told = !write_line(exit_file, "%d %d\n", pid, status);
    ended = pid;
  }
}

static int keep(int argc, char **argv) {
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

static int run(int argc, char **argv) {
  if (argc < 3 || strcmp(argv[1], "--")) return complain("usage: run OUT_FILE -- CMD..."), 2;
  pid_t command = start(argv[0], argv + 2);
  int status;
  while (waitpid(command, &status, 0) < 0)
    if (errno != EINTR) return 1;
  return exit_code(status);
}

// One request, one reply: {"success":true,"err":"","result":…}. `reply` gets the whole text.
static int call(const char *socket_path, const char *request, const int *fds, int fd_count, char *reply) {
  int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(socket_path) >= sizeof address.sun_path) return errno = ENAMETOOLONG, -1;
  strcpy(address.sun_path, socket_path);
  struct timeval timeout = {.tv_sec = CALL_TIMEOUT_S};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address)) {
    complain("control socket");
    return close(connection), -1;
  }
  struct iovec data = {.iov_base = (void *)request, .iov_len = strlen(request)};
  char control[CMSG_SPACE(sizeof(int) * 4)];
  memset(control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)fd_count);
  }
  if (sendmsg(connection, &message, MSG_NOSIGNAL) != (ssize_t)data.iov_len) {
    complain("control socket, send");
    return close(connection), -1;
  }
  size_t length = 0;
  int depth = 0, quoted = 0, escaped = 0, complete = 0;
  while (!complete && length < REPLY_MAX - 1) {
    ssize_t n = recv(connection, reply + length, REPLY_MAX - 1 - length, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = 0;
      complain("control socket closed before the answer");
      return close(connection), -1;
    }
    for (ssize_t i = 0; i < n; i++) {
      char c = reply[length + (size_t)i];
      if (escaped) escaped = 0;
      else if (quoted && c == '\\') escaped = 1;
      else if (c == '"') quoted = !quoted;
      else if (!quoted && c == '{') depth++;
      else if (!quoted && c == '}' && --depth == 0) complete = 1;
    }
    length += (size_t)n;
  }
  reply[length] = 0;
  close(connection);
  if (strstr(reply, "\"success\":true")) return 0;
  errno = 0;
  complain("%s", reply);
  return -1;
}

static int method(const char *socket_path, const char *name, const char *argument) {
  static char request[REPLY_MAX], reply[REPLY_MAX];
  snprintf(request, sizeof request, "{\"method\":\"%s\",\"arg\":%s}", name, argument);
  return call(socket_path, request, NULL, 0, reply);
}

static int clone_file(const char *source, const char *destination, int *clone) {
  int from = open(source, O_RDONLY | O_CLOEXEC);
  if (from < 0) return complain("disk image"), -1;
  *clone = open(destination, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (*clone < 0) return complain("disk clone"), close(from), -1;
  int failed = ioctl(*clone, FICLONE, from);
  if (failed) {
    complain("reflink of the disk");
    close(*clone);
    unlink(destination);
  }
  close(from);
  return failed;
}

// Of a paused machine: nothing writes to its disk, so what was written is on the device after syncfs, and the rest is the
// journal's to replay at the clone's first mount. FIFREEZE would wait for RCU grace periods, 30 to 150 ms of the pause.
static int sync_clone(int mount_fd, const char *disk, const char *destination, int *clone, long *clone_us) {
  if (syncfs(mount_fd)) return complain("syncing the disk"), -1;
  long began = now_us();
  int failed = clone_file(disk, destination, clone);
  *clone_us = now_us() - began;
  return failed;
}

// What runsc checkpoint asks. An older sentry does not know the second of the names for pages of zeros, a newer one not the
// first; each leaves out what it does not know.
#define CHECKPOINT_REQUEST(without_zeros)                                                                      \
  "{\"method\":\"containerManager.Checkpoint\",\"arg\":{\"key\":null,\"metadata\":{\"compression\":\"none\"}," \
  "\"MemoryFileSaveOpts\":{\"ExcludeCommittedZeroPages\":" without_zeros                                       \
  "},"                                                                                                         \
  "\"app_mf_exclude_committed_zero_pages\":" without_zeros ",\"have_pages_file\":true,\"Resume\":true}}"
static const char *const checkpoint_request = CHECKPOINT_REQUEST("false");
static const char *const template_request = CHECKPOINT_REQUEST("true");

struct disk_clone {
  pthread_t thread;
  int mount_fd;
  const char *disk, *destination;
  int clone, failed;
  long clone_us, ended_us;
};

static void *clone_disk(void *argument) {
  struct disk_clone *work = argument;
  work->failed = sync_clone(work->mount_fd, work->disk, work->destination, &work->clone, &work->clone_us);
  work->ended_us = now_us();
  return NULL;
}

static int sync_directory(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  int failed = fsync(fd);
  close(fd);
  return failed;
}

static int open_images(const char *image_dir, int flags, int *images) {
  // The order of runsc checkpoint: kernel state, page metadata, pages.
  const char *names[3] = {"checkpoint.img", "pages_meta.img", "pages.img"};
  char path[4096];
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/%s", image_dir, names[i]);
    images[i] = open(path, flags | O_CLOEXEC, 0600);
    if (images[i] < 0) return complain("image file"), -1;
  }
  return 0;
}

// The service may die, with the pipe that hears us: a machine that was paused is resumed all the same.
static int pause_machine(const char *socket_path, const char *marker) {
  setsid();
  signal(SIGPIPE, SIG_IGN);
  int marker_fd = open(marker, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (marker_fd < 0 || flock(marker_fd, LOCK_EX | LOCK_NB)) return complain("marker"), -1;
  if (!method(socket_path, "containerManager.Pause", "null")) return 0;
  unlink(marker);
  return -1;
}

static int resume_machine(const char *socket_path, const char *marker) {
  if (method(socket_path, "containerManager.Resume", "null")) return -1;
  unlink(marker);
  return 0;
}

static int checkpoint(int argc, char **argv) {
  if (argc != 5) return complain("usage: checkpoint SOCKET MOUNT_POINT DISK CLONE MARKER"), 2;
  const char *socket_path = argv[0], *marker = argv[4];
  int mount_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC), clone;
  if (mount_fd < 0) return complain("mount point"), 1;
  long paused_at = now_us(), clone_us = 0;
  if (pause_machine(socket_path, marker)) return 1;
  int failed = sync_clone(mount_fd, argv[2], argv[3], &clone, &clone_us);
  failed |= resume_machine(socket_path, marker);
  if (failed) return 1;
  printf("{\"pauseUs\":%ld,\"cloneUs\":%ld}\n", now_us() - paused_at, clone_us);
  return 0;
}

static int snapshot(int argc, char **argv) {
  if (argc < 6) return complain("usage: snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER"), 2;
  const char *socket_path = argv[0], *image_dir = argv[1], *marker = argv[5];
  int stop = 0;
  const char *save_request = checkpoint_request;
  for (int i = 6; i < argc; i++) {
    if (!strcmp(argv[i], "--stop")) stop = 1;
    else if (!strcmp(argv[i], "--template")) save_request = template_request;
    else return complain("unknown flag %s", argv[i]), 2;
  }
  int mount_fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (mount_fd < 0) return complain("mount point"), 1;
  int images[3];
  if (open_images(image_dir, O_RDWR | O_CREAT | O_TRUNC, images)) return 1;
  // Most of the dirty pages go out before the pause.
  if (syncfs(mount_fd)) complain("syncing the disk");
  static char reply[REPLY_MAX];
  struct disk_clone disk_clone = {.mount_fd = mount_fd, .disk = argv[3], .destination = argv[4], .clone = -1};
  long paused_at = now_us();
  if (pause_machine(socket_path, marker)) return 1;
  // The sentry keeps no dirty pages of the disk (its bind mounts are shared), and nothing runs: so the disk is cloned
  // while the memory is saved.
  long began = now_us();
  int failed = pthread_create(&disk_clone.thread, NULL, clone_disk, &disk_clone);
  if (failed) {
    errno = failed;
    complain("thread");
  } else {
    failed = call(socket_path, save_request, images, 3, reply);
    pthread_join(disk_clone.thread, NULL);
  }
  failed |= disk_clone.failed;
  long saved = now_us();
  if (!failed && stop) {
    for (int i = 0; i < 3; i++) failed |= fsync(images[i]);
    failed |= fsync(disk_clone.clone) | sync_directory(image_dir);
    if (failed) complain("writing the image out");
  }
  if (failed || !stop) failed |= resume_machine(socket_path, marker);
  if (failed) return 1;
  printf("{\"pauseUs\":%ld,\"saveUs\":%ld,\"diskUs\":%ld,\"cloneUs\":%ld}\n", now_us() - paused_at, saved - began,
         disk_clone.ended_us - began, disk_clone.clone_us);
  return 0;
}

static int resume(const char *socket_path, const char *marker) {
  int fd = open(marker, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : (complain("marker"), 1);
  struct stat status;
  if (flock(fd, LOCK_EX) || fstat(fd, &status)) return complain("marker"), 1;
  if (status.st_nlink == 0) return 0;
  return resume_machine(socket_path, marker) ? 1 : 0;
}

static int save(const char *socket_path, const char *image_dir) {
  static char reply[REPLY_MAX];
  int images[3];
  if (open_images(image_dir, O_RDWR | O_CREAT | O_TRUNC, images)) return 1;
  if (method(socket_path, "containerManager.Pause", "null")) return 1;
  int failed = call(socket_path, template_request, images, 3, reply);
  for (int i = 0; i < 3; i++) failed |= fsync(images[i]);
  return failed || sync_directory(image_dir) ? 1 : 0;
}

int main(int argc, char **argv) {
  errno = 0;
  if (argc < 2) return complain("which command?"), 2;
  const char *command = argv[1];
  argc -= 2, argv += 2;
  if (!strcmp(command, "keep")) return keep(argc, argv);
  if (!strcmp(command, "run")) return run(argc, argv);
  if (!strcmp(command, "snapshot")) return snapshot(argc, argv);
  if (!strcmp(command, "checkpoint")) return checkpoint(argc, argv);
  if (!strcmp(command, "resume") && argc == 2) return resume(argv[0], argv[1]);
  if (!strcmp(command, "pause") && argc == 2) return pause_machine(argv[0], argv[1]) ? 1 : 0;
  if (!strcmp(command, "save") && argc == 2) return save(argv[0], argv[1]);
  return complain("unknown command %s", command), 2;
}
