// What the host needs of Linux that Node cannot do: a parent for a machine's processes that outlives the service, and
// the one uninterrupted sequence of a live snapshot. Static, no dependencies; compiled at set-up.
//
//   keeper keep [--hide-net-sysctl] PID_FILE EXIT_FILE OUT_FILE -- CMD...
//       Runs CMD (runsc create) and answers its exit code, while a copy of itself, named in PID_FILE, stays in the
//       background as subreaper of what CMD leaves behind. When a child of the machine ends later, EXIT_FILE appears
//       with "PID STATUS\n" (wait status), the others get 2 s and are killed, and the keeper ends: no zombie stays,
//       and runsc never has to poll for its gofer.
//   keeper run [--hide-net-sysctl] OUT_FILE -- CMD...
//       Runs CMD in the same private mount namespace and answers its exit code.
//   keeper call SOCKET METHOD [ARG_JSON]
//       One call of the sentry's control socket (JSON over a stream), which saves runsc's 20 ms of start-up.
//   keeper snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER [--stop] [--template] [--quiet OPENS]
//       pause; save memory into IMAGE_DIR; sync MOUNT_POINT and reflink DISK to CLONE; resume. Prints JSON.
//       --stop: does not resume, and everything is durable when it answers. On failure the machine goes on.
//       --template: pages of zeros are left out, which takes longer: for what is saved once and read into every machine.
//       --quiet: no connection to the outside was open when OPENS connections had ever been opened from inside.
//       MARKER exists, locked, while this runs, and stays, unlocked, where the machine stays paused.
//   keeper resume SOCKET MARKER
//       Waits for a snapshot under way, then resumes where MARKER says that the machine is paused. (The sentry does
//       not tell whether it is paused, and dies of a resume too many.)
//   keeper restore SOCKET IMAGE_DIR NETNS
//       What `runsc restore` of runsc 20240729 asks of a sentry that has nothing in it, without the start of a Go program of
//       30 MB, 30 ms of processor time: eth0 of NETNS becomes the sandbox's, its address is taken out of the
//       namespace, and the memory in IMAGE_DIR goes on.
//   keeper save SOCKET IMAGE_DIR
//       The memory alone, of a machine without a disk.
//   keeper join STATE
//       The pieces of a saved state become one (state-pieces.h), as after each snapshot and save.
//
// --hide-net-sysctl: some kernels show net.core.rmem_default in every network namespace; this runsc takes that for the
// root network namespace and refuses its own network stack. An empty tmpfs in a private mount namespace hides it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/fs.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "state-pieces.h"

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

static int hide_net_sysctl(void) {
  if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) ||
      mount("none", "/proc/sys/net", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k")) {
    complain("private mount namespace");
    return -1;
  }
  return 0;
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
  int ended = 0;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return 0;
    if (pid == command) {
      int code = exit_code(status);
      if (write(report, &code, sizeof code) < 0) errno = 0;
      close(report);
      if (code != 0) alarm(1);
      continue;
    }
    if (ended) continue;
    ended = 1;
    write_line(exit_file, "%d %d\n", pid, status);
    alarm(2);
  }
}

static int keep(int argc, char **argv) {
  int hide = argc > 0 && !strcmp(argv[0], "--hide-net-sysctl");
  argc -= hide, argv += hide;
  if (argc < 5 || strcmp(argv[3], "--")) return complain("usage: keep PID_FILE EXIT_FILE OUT_FILE -- CMD..."), 2;
  int report[2], code;
  if (pipe2(report, O_CLOEXEC)) return complain("pipe"), 1;
  if (hide && hide_net_sysctl()) return 1;
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
  int hide = argc > 0 && !strcmp(argv[0], "--hide-net-sysctl");
  argc -= hide, argv += hide;
  if (argc < 3 || strcmp(argv[1], "--")) return complain("usage: run OUT_FILE -- CMD..."), 2;
  if (hide && hide_net_sysctl()) return 1;
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

#define CHECKPOINT_REQUEST(without_zeros)                                                                              \
  "{\"method\":\"containerManager.Checkpoint\",\"arg\":{\"key\":null,\"metadata\":{\"compression\":\"none\"}," \
  "\"MemoryFileSaveOpts\":{\"ExcludeCommittedZeroPages\":" without_zeros "},\"have_pages_file\":true,\"Resume\":true}}"
static const char *const checkpoint_request = CHECKPOINT_REQUEST("false");
static const char *const template_request = CHECKPOINT_REQUEST("true");

// Saving resets connections to the outside, and that wakes their pollers in the middle of the serialization: the image
// then holds a torn epoll ready list, and a restored program that polls such a connection spins for ever (seen with
// runsc 20240729). Where there is one, a first save that fails at the pages does the resetting, in a consistent state, so that the second
// finds only closed connections. What it wrote is thrown away.
static void reset_connections(const char *socket_path, const char *image_dir) {
  static char reply[REPLY_MAX];
  int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int state = open(image_dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  int images[3] = {state, nothing, nothing};
  int quiet = dup(2), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  fflush(stderr);
  dup2(null, 2);
  call(socket_path, checkpoint_request, images, 3, reply);
  fflush(stderr);
  dup2(quiet, 2);
  close(quiet), close(null), close(state), close(nothing);
}

// TCP connections opened from inside since the sentry began, as it counts them for /proc/net/snmp too; -1: it does not say.
static long opened_connections(const char *socket_path) {
  static const char request[] =
      "{\"method\":\"Metrics.Export\",\"arg\":{\"only_metrics\":\"tcp_active_connection_openings\"}}";
  static char reply[REPLY_MAX];
  if (call(socket_path, request, NULL, 0, reply)) return -1;
  // A figure that is still 0 is left out.
  const char *value = strstr(reply, "\"val\":{");
  if (!value) return strstr(reply, "\"snapshot\":{") ? 0 : -1;
  long opened = 0;
  sscanf(value, "\"val\":{\"int\":%ld", &opened);
  return opened;
}

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

static int snapshot(int argc, char **argv) {
  if (argc < 6) return complain("usage: snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER"), 2;
  const char *socket_path = argv[0], *image_dir = argv[1], *marker = argv[5];
  int stop = 0;
  const char *save_request = checkpoint_request;
  long quiet_opens = -1;
  for (int i = 6; i < argc; i++) {
    if (!strcmp(argv[i], "--stop")) stop = 1;
    else if (!strcmp(argv[i], "--template")) save_request = template_request;
    else if (!strcmp(argv[i], "--quiet") && i + 1 < argc) quiet_opens = atol(argv[++i]);
    else return complain("unknown flag %s", argv[i]), 2;
  }
  // The service may die, with the pipe that hears us: the machine must be resumed all the same.
  setsid();
  signal(SIGPIPE, SIG_IGN);
  int mount_fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (mount_fd < 0) return complain("mount point"), 1;
  int images[3];
  if (open_images(image_dir, O_RDWR | O_CREAT | O_TRUNC, images)) return 1;
  int marker_fd = open(marker, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (marker_fd < 0 || flock(marker_fd, LOCK_EX | LOCK_NB)) return complain("marker"), 1;
  // Most of the dirty pages go out before the pause.
  if (syncfs(mount_fd)) complain("syncing the disk");
  static char reply[REPLY_MAX];
  struct disk_clone disk_clone = {.mount_fd = mount_fd, .disk = argv[3], .destination = argv[4], .clone = -1};
  long paused_at = now_us();
  if (method(socket_path, "containerManager.Pause", "null")) return unlink(marker), 1;
  // The sentry keeps no dirty pages of the disk (its bind mounts are shared), and nothing runs: so the disk is cloned
  // while the memory is saved.
  long began = now_us();
  int quiet = 0;
  int failed = pthread_create(&disk_clone.thread, NULL, clone_disk, &disk_clone);
  if (failed) {
    errno = failed;
    complain("thread");
  } else {
    // Nothing runs any more that could open one: what was quiet and has opened none since is quiet.
    quiet = quiet_opens >= 0 && opened_connections(socket_path) == quiet_opens;
    if (!quiet) reset_connections(socket_path, image_dir);
    failed = call(socket_path, save_request, images, 3, reply);
    pthread_join(disk_clone.thread, NULL);
  }
  failed |= disk_clone.failed;
  long saved = now_us();
  if (!failed && stop) {
    failed = join_pieces(images[0]);
    for (int i = 0; i < 3; i++) failed |= fsync(images[i]);
    failed |= fsync(disk_clone.clone) | sync_directory(image_dir);
    if (failed) complain("writing the image out");
  }
  if (failed || !stop) {
    if (method(socket_path, "containerManager.Resume", "null")) failed = -1;
    else unlink(marker);
  }
  long resumed = now_us();
  if (!failed && !stop && (failed = join_pieces(images[0]))) complain("joining the pieces of the state");
  if (failed) return 1;
  printf("{\"pauseUs\":%ld,\"saveUs\":%ld,\"diskUs\":%ld,\"cloneUs\":%ld,\"quiet\":%s}\n", resumed - paused_at,
         saved - began, disk_clone.ended_us - began, disk_clone.clone_us, quiet ? "true" : "false");
  return 0;
}

static int resume(const char *socket_path, const char *marker) {
  int fd = open(marker, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : (complain("marker"), 1);
  struct stat status;
  if (flock(fd, LOCK_EX) || fstat(fd, &status)) return complain("marker"), 1;
  if (status.st_nlink == 0) return 0;
  if (method(socket_path, "containerManager.Resume", "null")) return 1;
  unlink(marker);
  return 0;
}

static int save(const char *socket_path, const char *image_dir) {
  static char reply[REPLY_MAX];
  int images[3];
  if (open_images(image_dir, O_RDWR | O_CREAT | O_TRUNC, images)) return 1;
  if (method(socket_path, "containerManager.Pause", "null")) return 1;
  reset_connections(socket_path, image_dir);
  int failed = call(socket_path, template_request, images, 3, reply) || join_pieces(images[0]);
  for (int i = 0; i < 3; i++) failed |= fsync(images[i]);
  return failed || sync_directory(image_dir) ? 1 : 0;
}

struct link {
  char address[INET_ADDRSTRLEN], network[INET_ADDRSTRLEN], gateway[INET_ADDRSTRLEN];
  char mask[9], mac[9];
  int prefix, mtu, offload, socket;
};

// As Go writes bytes into JSON; `text` has room for four characters per three bytes, and the end.
static void base64(const unsigned char *bytes, size_t length, char *text) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < length; i += 3) {
    unsigned long bits = (unsigned long)bytes[i] << 16;
    if (i + 1 < length) bits |= (unsigned long)bytes[i + 1] << 8;
    if (i + 2 < length) bits |= bytes[i + 2];
    for (int digit = 0; digit < 4; digit++)
      *text++ = i + (size_t)digit > length ? '=' : digits[bits >> (18 - 6 * digit) & 63];
  }
  *text = 0;
}

static struct in_addr *inet_of(struct ifreq *request) {
  return &((struct sockaddr_in *)&request->ifr_addr)->sin_addr;
}

// The gateway of the default route through eth0; empty: there is none.
static int read_gateway(char *gateway) {
  FILE *routes = fopen("/proc/self/net/route", "re");
  if (!routes) return complain("routes"), -1;
  char line[256];
  unsigned destination, via;
  *gateway = 0;
  while (fgets(line, sizeof line, routes))
    if (sscanf(line, "eth0 %x %x", &destination, &via) == 2 && destination == 0)
      inet_ntop(AF_INET, &via, gateway, INET_ADDRSTRLEN);
  fclose(routes);
  return 0;
}

// Address, route and hardware address of eth0, in whose namespace we are, and a socket for its packets.
static int open_link(struct link *link) {
  struct ifreq request = {.ifr_name = "eth0"};
  int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (control < 0 || ioctl(control, SIOCGIFADDR, &request)) return complain("address of eth0"), -1;
  struct in_addr address = *inet_of(&request), network;
  if (ioctl(control, SIOCGIFNETMASK, &request)) return complain("mask of eth0"), -1;
  struct in_addr mask = *inet_of(&request);
  network.s_addr = address.s_addr & mask.s_addr;
  link->prefix = __builtin_popcount(mask.s_addr);
  inet_ntop(AF_INET, &address, link->address, sizeof link->address);
  inet_ntop(AF_INET, &network, link->network, sizeof link->network);
  base64((unsigned char *)&mask, sizeof mask, link->mask);
  if (read_gateway(link->gateway)) return -1;
  if (ioctl(control, SIOCGIFMTU, &request)) return complain("MTU of eth0"), -1;
  link->mtu = request.ifr_mtu;
  if (ioctl(control, SIOCGIFHWADDR, &request)) return complain("hardware address of eth0"), -1;
  base64((unsigned char *)request.ifr_hwaddr.sa_data, 6, link->mac);
  struct ethtool_value segmentation = {.cmd = ETHTOOL_GGSO};
  request.ifr_data = (void *)&segmentation;
  if (ioctl(control, SIOCETHTOOL, &request)) return complain("segmentation offload of eth0"), -1;
  link->offload = segmentation.data != 0;
  // From here on the address is the sandbox's: the kernel must not answer for it.
  memset(&request.ifr_addr, 0, sizeof request.ifr_addr);
  request.ifr_addr.sa_family = AF_INET;
  if (ioctl(control, SIOCSIFADDR, &request)) return complain("taking the address of eth0"), -1;
  close(control);
  int one = 1, buffer = 4 << 20;
  struct sockaddr_ll place = {
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex("eth0")};
  link->socket = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (link->socket < 0 || bind(link->socket, (struct sockaddr *)&place, sizeof place) ||
      (link->offload && setsockopt(link->socket, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)) ||
      setsockopt(link->socket, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) ||
      setsockopt(link->socket, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer))
    return complain("packets of eth0"), -1;
  return 0;
}

static int give_link(const char *socket_path, const struct link *link) {
  static const char loopback[] = "{\"Name\":\"lo\",\"Addresses\":[{\"Address\":\"127.0.0.1\",\"PrefixLen\":8}],"
                                 "\"Routes\":[{\"Destination\":{\"IP\":\"127.0.0.0\",\"Mask\":\"/wAAAA==\"},\"Gateway\":\"\"}]}";
  static char request[REPLY_MAX], reply[REPLY_MAX];
  char gateway[256] = "null";
  if (*link->gateway)
    snprintf(gateway, sizeof gateway,
             "{\"Route\":{\"Destination\":{\"IP\":\"0.0.0.0\",\"Mask\":\"AAAAAAAAAAAAAP//AAAAAA==\"},\"Gateway\":\"%s\"},"
             "\"Name\":\"eth0\"}",
             link->gateway);
  snprintf(request, sizeof request,
           "{\"method\":\"Network.CreateLinksAndRoutes\",\"arg\":{\"LoopbackLinks\":[%s],\"FDBasedLinks\":[{"
           "\"Name\":\"eth0\",\"MTU\":%d,\"Addresses\":[{\"Address\":\"%s\",\"PrefixLen\":%d}],"
           "\"Routes\":[{\"Destination\":{\"IP\":\"%s\",\"Mask\":\"%s\"},\"Gateway\":\"\"}],\"GSOMaxSize\":%d,"
           "\"GVisorGSOEnabled\":%s,\"RXChecksumOffload\":true,\"LinkAddress\":\"%s\",\"QDisc\":1,\"NumChannels\":1}],"
           "\"Defaultv4Gateway\":%s,\"DisconnectOk\":true}}",
           loopback, link->mtu, link->address, link->prefix, link->network, link->mask, link->offload ? 65536 : 0,
           link->offload ? "false" : "true", link->mac, gateway);
  return call(socket_path, request, &link->socket, 1, reply);
}

static int restore(const char *socket_path, const char *image_dir, const char *namespace_path) {
  static const char request[] =
      "{\"method\":\"containerManager.Restore\",\"arg\":{\"HavePagesFile\":true,\"HaveDeviceFile\":false}}";
  static char reply[REPLY_MAX];
  int images[3];
  struct link link;
  if (open_images(image_dir, O_RDONLY, images)) return 1;
  int namespace = open(namespace_path, O_RDONLY | O_CLOEXEC);
  if (namespace < 0 || setns(namespace, CLONE_NEWNET)) return complain("network namespace"), 1;
  if (open_link(&link) || give_link(socket_path, &link)) return 1;
  return call(socket_path, request, images, 3, reply) ? 1 : 0;
}

int main(int argc, char **argv) {
  errno = 0;
  if (argc < 2) return complain("which command?"), 2;
  const char *command = argv[1];
  argc -= 2, argv += 2;
  if (!strcmp(command, "keep")) return keep(argc, argv);
  if (!strcmp(command, "run")) return run(argc, argv);
  if (!strcmp(command, "snapshot")) return snapshot(argc, argv);
  if (!strcmp(command, "call") && argc >= 2) return method(argv[0], argv[1], argc > 2 ? argv[2] : "null") ? 1 : 0;
  if (!strcmp(command, "resume") && argc == 2) return resume(argv[0], argv[1]);
  if (!strcmp(command, "restore") && argc == 3) return restore(argv[0], argv[1], argv[2]);
  if (!strcmp(command, "save") && argc == 2) return save(argv[0], argv[1]);
  if (!strcmp(command, "join") && argc == 1) {
    int state = open(argv[0], O_RDWR | O_CLOEXEC);
    return state < 0 || join_pieces(state) ? (complain("joining %s", argv[0]), 1) : 0;
  }
  return complain("unknown command %s", command), 2;
}
