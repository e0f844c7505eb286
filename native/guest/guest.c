#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "temporary.h"
#include "tmpfiles.h"

/* Memory of a virtual machine that users' programs never get; in a small machine a quarter of it. */
#define AGENT_MEMORY (96ull << 20)
/* The weight of users' programs. The agent's processes weigh about 100 on the same scale. */
#define USERS_CPU_WEIGHT "50"

/* Makes `path` a directory and replaces anything else there, so that a user's tree cannot make the sandbox unusable. */
static bool make_directory(const char *path, mode_t mode) {
  struct stat st;
  if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return true;
  unlink(path);
  return mkdir(path, mode) == 0;
}

/* Makes the parent directories of `path`. */
static bool make_parents(const char *path) {
  char at[4096];
  if (strlen(path) >= sizeof at) return false;
  strcpy(at, path);
  for (char *slash = at + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    if (!make_directory(at, 0755)) return false;
    *slash = '/';
  }
  return true;
}

static bool ensure_directory(const char *path, mode_t mode) { return make_parents(path) && make_directory(path, mode); }

static bool ensure_file(const char *path) {
  int fd = make_parents(path) ? open(path, O_CREAT | O_WRONLY | O_NONBLOCK | O_CLOEXEC, 0644) : -1;
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/* Half of the memory, which is the default of tmpfs on Linux; gVisor has no default limit. 0: unknown. */
static unsigned long long tmpfs_bytes(void) {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? (unsigned long long)info.totalram * info.mem_unit / 2 : 0;
}

/* This guest's tmpfs mounts, for guest_renew. The paths are copies, because init wipes its arguments. */
static struct {
  unsigned long long size;
  struct {
    const char *path, *mode;
  } mounts[MOUNTS_MAX + 1];
  int count;
} tmpfs;

static bool mount_tmpfs(const char *path, const char *mode) {
  char options[64];
  if (tmpfs.size > 0) snprintf(options, sizeof options, "mode=%s,size=%llu", mode, tmpfs.size);
  else snprintf(options, sizeof options, "mode=%s", mode);
  return mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) == 0;
}

static bool keep_tmpfs(const char *path, const char *mode) {
  tmpfs.mounts[tmpfs.count].path = strdup(path);
  tmpfs.mounts[tmpfs.count++].mode = mode;
  return mount_tmpfs(path, mode);
}

/* Makes a device node in /dev. Where that is refused, mounts the old root's node over an empty file. */
static bool make_device(const char *name, unsigned major_number, unsigned minor_number) {
  char path[64], source[64];
  snprintf(path, sizeof path, "/dev/%s", name);
  if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) == 0) return chmod(path, 0666) == 0;
  snprintf(source, sizeof source, "dev/%s", name); /* relative to the old root, which is the working directory */
  return ensure_file(path) && mount(source, path, NULL, MS_BIND, NULL) == 0;
}

/* Devices that can be used in a user namespace but not made in one. */
static bool make_shared_devices(void) {
  return make_device("fuse", 10, 229) && mkdir("/dev/net", 0755) == 0 && make_device("net/tun", 10, 200);
}

static const char *mount_dev(bool user_namespace) {
  if (!ensure_directory("/dev", 0755)) return "mkdir /dev";
  /* Without MS_NODEV. */
  if (mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=65536") != 0) return "mount /dev";
  if (!make_device("null", 1, 3) || !make_device("zero", 1, 5) || !make_device("full", 1, 7) || !make_device("random", 1, 8) ||
      !make_device("urandom", 1, 9) || !make_device("tty", 5, 0))
    return "devices";
  if (user_namespace && !make_shared_devices()) return "devices";
  mkdir("/dev/pts", 0755);
  if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5") != 0)
    return "mount /dev/pts";
  chmod("/dev/pts", 0755); /* gVisor applies `mode` to the directory itself */
  mkdir("/dev/shm", 01777);
  if (!keep_tmpfs("/dev/shm", "1777")) return "mount /dev/shm";
  if (symlink("pts/ptmx", "/dev/ptmx") != 0 || symlink("/proc/self/fd", "/dev/fd") != 0 || symlink("fd/0", "/dev/stdin") != 0 ||
      symlink("fd/1", "/dev/stdout") != 0 || symlink("fd/2", "/dev/stderr") != 0)
    return "links in /dev";
  return NULL;
}

/* Makes /tmp and /var/tmp where a tree has none. They lie on the disk, so that checkpoints include them. */
static const char *ensure_tmp(void) {
  static const char *const paths[] = {"/tmp", "/var/tmp"};
  for (int i = 0; i < 2; i++) {
    struct stat st;
    if (stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode)) continue;
    if (!ensure_directory(paths[i], 0700) || chmod(paths[i], 01777) != 0) return paths[i];
  }
  return NULL;
}

static bool has_own_run(void) {
  for (int i = 0; i < tmpfs.count; i++)
    if (strcmp(tmpfs.mounts[i].path, "/run") == 0) return true;
  return false;
}

static const char *mount_files(const struct guest_options *options) {
  for (int i = 0; i < options->mount_count; i++) {
    const struct guest_mount *file = &options->mounts[i];
    const char *source = file->source;
    while (*source == '/') source++;
    struct stat st;
    if (fstatat(AT_FDCWD, source, &st, 0) != 0) return "mount source";
    if (S_ISDIR(st.st_mode) ? !ensure_directory(file->target, 0755) : !ensure_file(file->target)) return "mount target";
    if (mount(source, file->target, NULL, MS_BIND, NULL) != 0) return "bind";
    if (file->read_only && mount(NULL, file->target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0) return "mount read-only";
  }
  return NULL;
}

static bool write_file_at(int at, const char *name, const char *text) {
  int fd = openat(at, name, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  close(fd);
  return written;
}

/*
 * In a virtual machine users' programs and the agent share one kernel. These limits keep the agent answering: part of the memory
 * and more than an equal share of the CPUs are reserved for it. A limit that the kernel lacks is left out.
 */
static void limit_resources(int parent, int group) {
  write_file_at(parent, "cgroup.subtree_control", "+memory");
  write_file_at(parent, "cgroup.subtree_control", "+cpu");
  struct sysinfo machine;
  if (sysinfo(&machine) != 0) return;
  uint64_t total = (uint64_t)machine.totalram * machine.mem_unit;
  uint64_t reserve = total / 4 < AGENT_MEMORY ? total / 4 : AGENT_MEMORY;
  char text[24];
  snprintf(text, sizeof text, "%llu", (unsigned long long)(total - reserve));
  write_file_at(group, "memory.max", text);
  write_file_at(group, "cpu.weight", USERS_CPU_WEIGHT);
}

/*
 * Memory for each process, of kernel and program together: gVisor's sentry and stubs hold half a MiB for each. gVisor lets
 * half as many more processes run than the limit (look_at_tasks in memory.c).
 */
#define MEMORY_PER_PROCESS (1ull << 20)
#define PROCESSES_LEAST 256

unsigned process_limit_fitting(unsigned max) {
  struct sysinfo machine;
  if (sysinfo(&machine) != 0) return max;
  uint64_t fitting = (uint64_t)machine.totalram * machine.mem_unit / MEMORY_PER_PROCESS;
  if (fitting < PROCESSES_LEAST) fitting = PROCESSES_LEAST;
  return max < fitting ? max : (unsigned)fitting;
}

/*
 * Makes or finds the cgroup of this agent's guests. The hierarchy is mounted for a moment over a directory in our private
 * mount namespace; only descriptors are kept. Version 2 (virtual machines) or 1 (gVisor), whichever has the controller.
 */
static void limit_processes(const char *mount_point, unsigned max, struct process_limit *limit) {
  limit->procs_fd = limit->max_fd = limit->current_fd = limit->parent_fd = -1;
  limit->asked = max;
  limit->max = max = process_limit_fitting(max);
  if (max == 0) return;
  snprintf(limit->name, sizeof limit->name, "cloche-guests-%d", getppid());
  for (int version = 2; version >= 1 && limit->procs_fd < 0; version--) {
    const char *type = version == 1 ? "cgroup" : "cgroup2";
    /* nsdelegate: a cgroup namespace that begins at this group cannot write its limits (confine.c). Every mount must set it. */
    if (mount(type, mount_point, type, MS_NOSUID | MS_NODEV | MS_NOEXEC, version == 1 ? "pids" : "nsdelegate") != 0) continue;
    int parent = open(mount_point, O_RDONLY | O_DIRECTORY | O_CLOEXEC), group = -1;
    if (parent >= 0) {
      if (version == 2) write_file_at(parent, "cgroup.subtree_control", "+pids");
      mkdirat(parent, limit->name, 0755);
      group = openat(parent, limit->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    char text[16];
    snprintf(text, sizeof text, "%u", max);
    if (group >= 0 && write_file_at(group, "pids.max", text)) {
      limit->procs_fd = openat(group, "cgroup.procs", O_WRONLY | O_CLOEXEC);
      limit->max_fd = openat(group, "pids.max", O_WRONLY | O_CLOEXEC);
      limit->current_fd = openat(group, "pids.current", O_RDONLY | O_CLOEXEC);
    }
    if (limit->procs_fd >= 0 && version == 2) limit_resources(parent, group);
    if (group >= 0) close(group);
    if (limit->procs_fd >= 0) {
      limit->parent_fd = parent;
    } else if (parent >= 0) {
      unlinkat(parent, limit->name, AT_REMOVEDIR);
      close(parent);
    }
    umount2(mount_point, MNT_DETACH);
  }
}

void process_limit_close(struct process_limit *limit) {
  int *fds[] = {&limit->procs_fd, &limit->max_fd, &limit->current_fd};
  for (int i = 0; i < 3; i++) {
    if (*fds[i] >= 0) close(*fds[i]);
    *fds[i] = -1;
  }
}

void process_limit_remove(const struct process_limit *limit) {
  if (limit->parent_fd >= 0) unlinkat(limit->parent_fd, limit->name, AT_REMOVEDIR);
}

const char *guest_enter(const struct guest_options *options, struct process_limit *limit, int *hidden) {
  *hidden = -1;
  if (unshare(CLONE_NEWNS) != 0) return "unshare mount namespace";
  if (unshare(CLONE_NEWIPC) != 0) return "unshare ipc namespace";
  bool own_uts = unshare(CLONE_NEWUTS) == 0;
  if (options->hostname && own_uts && sethostname(options->hostname, strlen(options->hostname)) != 0) return "hostname";
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return "private mounts";
  limit_processes(options->root, options->max_processes, limit);
  if (mount(options->root, options->root, NULL, MS_BIND | MS_REC, NULL) != 0) return "bind root";
  /* The disk may have device nodes, from an archive or an earlier guest. */
  if (options->user_namespace && mount(NULL, options->root, NULL, MS_REMOUNT | MS_BIND | MS_NODEV, NULL) != 0)
    return "root without devices";
  int old_root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (old_root < 0 || chdir(options->root) != 0) return "open root";
  /* Pivot first: from here on every path, and every symlink that a user left at a mount point, resolves in the user's tree. */
  if (syscall(SYS_pivot_root, ".", ".") != 0) return "pivot";
  if (fchdir(old_root) != 0) return "old root";
  if (ensure_directory("/proc", 0555)) *hidden = temporary_open_hidden();
  tmpfs.size = tmpfs_bytes();
  const char *failed = mount_dev(options->user_namespace);
  if (!failed) failed = mount_files(options);
  if (!failed) failed = ensure_tmp();
  if (failed) return failed;
  for (int i = 0; i < options->tmpfs_count; i++) {
    const char *path = options->tmpfs[i];
    bool shared = strcmp(path, "/tmp") == 0 || strcmp(path, "/var/tmp") == 0;
    if (!ensure_directory(path, 0755) || !keep_tmpfs(path, shared ? "1777" : "755")) return path;
  }
  /* For users' programs; ours do not need it. */
  if (ensure_directory("/sys", 0755)) mount("sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
  if (umount2(".", MNT_DETACH) != 0) return "leave the old root";
  close(old_root);
  return chdir("/") == 0 ? NULL : "chdir";
}

void guest_fill_run(void) {
  if (has_own_run()) run_prepare();
}

/*
 * gVisor's procfs caches a thousand names that were looked up, also of processes that have ended. Each of these takes some 10 KB
 * of a memory image, which every later fork and suspend has to write. Linux has no such option.
 */
#define PROC_NAMES_MAX "16"
static int mount_proc(const char *options) { return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, options); }

static int mount_limited_proc(void) { return mount_proc("dentry_cache_limit=" PROC_NAMES_MAX); }

int limit_proc(void) {
  /* If the kernel has the option, unmount both and mount once: this drops the old procfs and the names that it cached. */
  if (mount_limited_proc() != 0) return errno == EINVAL ? 0 : -1;
  if (umount2("/proc", MNT_DETACH) != 0 || umount2("/proc", MNT_DETACH) != 0) return -1;
  return mount_limited_proc();
}

const char *guest_mount_proc(void) {
  if (!ensure_directory("/proc", 0555)) return "mkdir /proc";
  return mount_limited_proc() == 0 || mount_proc(NULL) == 0 ? NULL : "mount /proc";
}

const char *guest_renew(void) {
  if (umount2("/proc", MNT_DETACH) != 0) return "umount /proc";
  const char *failed = guest_mount_proc();
  unsigned long long size = tmpfs_bytes();
  if (failed || size == tmpfs.size) return failed;
  tmpfs.size = size;
  for (int i = 0; i < tmpfs.count; i++) {
    const char *path = tmpfs.mounts[i].path;
    if (umount2(path, MNT_DETACH) != 0 || !mount_tmpfs(path, tmpfs.mounts[i].mode)) return path;
  }
  guest_fill_run();
  return NULL;
}
