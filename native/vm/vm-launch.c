/*
 * Starts QEMU in a jail: the machine's cgroups and network namespace, new mount, pid, ipc and uts namespaces whose root has only
 * /usr (read-only), a few device nodes and the machine's directory at /vm, and an unprivileged user that may create no file
 * there. QEMU is not a child of the service and outlives it.
 *
 *   vm-launch --vm DIR --uid N [--netns PATH --tap NAME] [--cgroup PROCS_FILE]... [--incoming FILE] [--preload LIB]
 *             [--kvm] -- PROGRAM ARGS...
 *
 * The program finds: fd 3 the incoming device state (else /dev/null), fd 4 the tap (else /dev/null), fd 5 a listening
 * unix socket DIR/qmp.sock. stdout and stderr go to DIR/qemu.log. Prints the pid as the host sees it; on failure prints why
 * and exits 1 with nothing left behind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

enum { FD_INCOMING = 3, FD_TAP = 4, FD_QMP = 5, FIRST_FREE_FD = 10, MAX_CGROUPS = 8 };

static int report_fd = 2;

static void fail(const char *format, ...) {
  int error = errno;
  char text[512];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (length < 0 || length >= (int)sizeof text) length = sizeof text - 1;
  dprintf(report_fd, "vm-launch: %.*s: %s\n", length, text, strerror(error));
  _exit(1);
}

static void join_cgroup(const char *procs) {
  int fd = open(procs, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, "0", 1) != 1) fail("cannot join %s", procs);
  close(fd);
}

/* Through the directory's descriptor, because a socket's path has at most 107 bytes. */
static int listen_on(const char *dir, const char *name) {
  int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd < 0) fail("cannot open %s", dir);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dir_fd, name);
  unlinkat(dir_fd, name, 0);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  mode_t before = umask(0177);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4) != 0) fail("cannot listen on %s/%s", dir, name);
  umask(before);
  close(dir_fd);
  return fd;
}

static int open_tap(const char *netns, const char *name) {
  int ns = open(netns, O_RDONLY | O_CLOEXEC);
  if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) fail("cannot enter the network namespace %s", netns);
  close(ns);
  int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("cannot open /dev/net/tun");
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &request) != 0) fail("cannot attach to the tap %s", name);
  return fd;
}

static void bind_at(const char *source, const char *target, unsigned long flags) {
  if (mount(source, target, NULL, MS_BIND, NULL) != 0) fail("cannot bind %s", source);
  if (mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | flags, NULL) != 0)
    fail("cannot restrict the mount of %s", source);
}

static void device_node(const char *path, unsigned major_number, unsigned minor_number, uid_t owner) {
  mode_t before = umask(0);
  if (mknod(path, S_IFCHR | (owner ? 0600 : 0666), makedev(major_number, minor_number)) != 0) fail("mknod %s", path);
  umask(before);
  if (owner && chown(path, owner, owner) != 0) fail("chown %s", path);
}

/* Runs in the new mount namespace with the working directory at the machine's directory. */
static void enter_jail(const char *preload, int kvm, uid_t uid) {
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) fail("cannot make mounts private");
  int vm_dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (vm_dir < 0) fail("cannot open the machine's directory");
  char vm_path[64];
  snprintf(vm_path, sizeof vm_path, "/proc/self/fd/%d", vm_dir);
  if (mkdir("root", 0755) != 0 && errno != EEXIST) fail("mkdir root");
  if (mount("cloche", "root", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,nr_inodes=64,mode=0755") != 0)
    fail("cannot mount the root of the jail");
  if (chdir("root") != 0) fail("chdir root");
  const char *dirs[] = {"usr", "dev", "vm", "tmp", "old"};
  for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
    if (mkdir(dirs[i], 0755) != 0) fail("mkdir %s", dirs[i]);
  const char *links[] = {"bin", "sbin", "lib", "lib32", "lib64"};
  char target[32];
  for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
    snprintf(target, sizeof target, "usr/%s", links[i]);
    if (symlink(target, links[i]) != 0) fail("symlink %s", links[i]);
  }
  bind_at("/usr", "usr", MS_RDONLY);
  if (preload) {
    int fd = open("preload.so", O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
    if (fd < 0) fail("cannot make the mount point of the preloaded library");
    close(fd);
    bind_at(preload, "preload.so", MS_RDONLY);
  }
  device_node("dev/null", 1, 3, 0);
  device_node("dev/zero", 1, 5, 0);
  device_node("dev/random", 1, 8, 0);
  device_node("dev/urandom", 1, 9, 0);
  struct stat node;
  if (kvm) {
    if (stat("/dev/kvm", &node) != 0) fail("/dev/kvm");
    device_node("dev/kvm", major(node.st_rdev), minor(node.st_rdev), uid);
  }
  if (mount(vm_path, "vm", NULL, MS_BIND, NULL) != 0) fail("cannot bind the machine's directory");
  if (mount(NULL, "vm", NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
    fail("cannot restrict the machine's directory");
  if (syscall(SYS_pivot_root, ".", "old") != 0) fail("pivot_root");
  if (chdir("/") != 0 || umount2("old", MNT_DETACH) != 0 || rmdir("old") != 0) fail("cannot leave the host's root");
  if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, "size=64k,nr_inodes=64") != 0)
    fail("cannot make the jail read-only");
}

static void place(int fd, int number) {
  if (dup2(fd, number) < 0) fail("dup2");
}

static void become(uid_t uid) {
  struct rlimit no_core = {0, 0};
  if (setrlimit(RLIMIT_CORE, &no_core) != 0) fail("setrlimit");
  if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) fail("cannot become user %u", uid);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
  /* The guest's memory is a mapped file, which has no huge pages; in the rest of QEMU they would only waste memory. */
  if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) fail("huge pages");
}

int main(int argc, char **argv) {
  const char *vm = NULL, *netns = NULL, *tap = NULL, *incoming = NULL, *preload = NULL;
  const char *cgroups[MAX_CGROUPS];
  int cgroup_count = 0, kvm = 0, i = 1;
  uid_t uid = 0;
  for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
    const char *name = argv[i];
    if (strcmp(name, "--kvm") == 0) {
      kvm = 1;
      continue;
    }
    const char *value = ++i < argc ? argv[i] : NULL;
    errno = EINVAL;
    if (!value) fail("%s needs a value", name);
    if (strcmp(name, "--vm") == 0) vm = value;
    else if (strcmp(name, "--uid") == 0) uid = (uid_t)strtoul(value, NULL, 10);
    else if (strcmp(name, "--netns") == 0) netns = value;
    else if (strcmp(name, "--tap") == 0) tap = value;
    else if (strcmp(name, "--incoming") == 0) incoming = value;
    else if (strcmp(name, "--preload") == 0) preload = value;
    else if (strcmp(name, "--cgroup") == 0 && cgroup_count < MAX_CGROUPS) cgroups[cgroup_count++] = value;
    else fail("unknown option %s", name);
  }
  errno = EINVAL;
  if (!vm || uid == 0 || i + 1 >= argc) fail("--vm, --uid and a program are needed");
  char **program = argv + i + 1;

  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) fail("pipe");
  /* Above the descriptors that the program finds by number. */
  int fds[6];
  fds[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (chdir(vm) != 0) fail("cannot enter %s", vm);
  fds[1] = open("qemu.log", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  fds[2] = incoming ? open(incoming, O_RDONLY | O_CLOEXEC) : dup(fds[0]);
  if (fds[0] < 0 || fds[1] < 0 || fds[2] < 0) fail("cannot open %s", incoming ? incoming : "the log");
  fds[3] = listen_on(".", "qmp.sock");
  for (int c = 0; c < cgroup_count; c++) join_cgroup(cgroups[c]);
  fds[4] = tap && netns ? open_tap(netns, tap) : dup(fds[0]);
  fds[5] = report[1];
  for (int f = 0; f < 6; f++)
    if ((fds[f] = fcntl(fds[f], F_DUPFD_CLOEXEC, FIRST_FREE_FD)) < 0) fail("dup");

  if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS) != 0) fail("unshare");
  pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    report_fd = fds[5];
    setsid();
    enter_jail(preload, kvm, uid);
    place(fds[0], 0);
    place(fds[1], 1);
    place(fds[1], 2);
    place(fds[2], FD_INCOMING);
    place(fds[4], FD_TAP);
    place(fds[3], FD_QMP);
    become(uid);
    char *environment[] = {"PATH=/usr/bin:/usr/sbin", "LC_ALL=C", preload ? "LD_PRELOAD=/preload.so" : NULL, NULL};
    execve(program[0], program, environment);
    fail("cannot execute %s", program[0]);
  }
  close(report[1]);
  close(fds[5]);
  char text[600];
  ssize_t length = read(report[0], text, sizeof text);
  if (length > 0) {
    (void)!write(2, text, (size_t)length);
    return 1;
  }
  printf("%d\n", child);
  return 0;
}
