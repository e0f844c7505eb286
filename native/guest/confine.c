#include "confine.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROC_FLAGS (MS_NOSUID | MS_NODEV | MS_NOEXEC)
#define ALL_IDS "0 0 4294967295"

/* Settings that programs need, and that affect only the machine's network or limits of resources. */
static const char *const writable[] = {"/proc/sys/net", "/proc/sys/fs/inotify", "/proc/sys/vm/max_map_count",
                                       "/proc/sys/vm/overcommit_memory"};

static bool bind_self(const char *path, unsigned long flags) {
  return mount(path, path, NULL, MS_BIND, NULL) == 0 && mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | PROC_FLAGS | flags, NULL) == 0;
}

/* An entry that is neither a process nor a link concerns the whole kernel: makes it read-only, and hides it if only root may read it. */
static bool confine_entry(int proc, const char *name) {
  char path[320];
  struct stat st;
  if (name[0] == '.' || isdigit((unsigned char)name[0])) return true;
  if (fstatat(proc, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return false;
  snprintf(path, sizeof path, "/proc/%s", name);
  if (S_ISDIR(st.st_mode)) return bind_self(path, MS_RDONLY);
  if (!S_ISREG(st.st_mode)) return true;
  if (!(st.st_mode & S_IROTH)) return mount("/dev/null", path, NULL, MS_BIND, NULL) == 0;
  return !(st.st_mode & 0222) || bind_self(path, MS_RDONLY);
}

const char *confine_proc(void) {
  DIR *list = opendir("/proc");
  if (!list) return "open /proc";
  bool done = true;
  for (struct dirent *entry; done && (entry = readdir(list));) done = confine_entry(dirfd(list), entry->d_name);
  closedir(list);
  if (!done) return "confine /proc";
  for (size_t i = 0; i < sizeof writable / sizeof *writable; i++)
    if (access(writable[i], F_OK) == 0 && !bind_self(writable[i], 0)) return writable[i];
  return NULL;
}

static bool enter_group(int fd) { return fd < 0 || write(fd, "0", 1) == 1; }

const char *confine_enter_namespaces(int sync, const struct process_limit *limit, int hidden) {
  /* No limit of locked memory, as root had it by a capability that is lost from here on. The cgroup bounds memory. */
  setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
  /* Enter the programs' cgroup for the unshare, so that it becomes the root of the new cgroup namespace; then leave it. */
  int back = limit->procs_fd < 0 ? -1 : openat(limit->parent_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (back >= 0 && !enter_group(limit->procs_fd)) return "enter the cgroup";
  /* The unshare carries the working directory over into the new mounts, but not an open descriptor. */
  if (hidden >= 0 && fchdir(hidden) != 0) return "hidden place";
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP) != 0) return "unshare user namespace";
  bool left = enter_group(back);
  if (back >= 0) close(back);
  if (!left) return "leave the cgroup";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char byte = 0;
  if (write(sync, &byte, 1) != 1 || read(sync, &byte, 1) != 1) return "user namespace";
  return chdir("/") == 0 ? NULL : "chdir";
}

static bool write_map(int proc, pid_t init, const char *name) {
  char path[48];
  snprintf(path, sizeof path, "%d/%s", init, name);
  int fd = openat(proc, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool written = write(fd, ALL_IDS, strlen(ALL_IDS)) == (ssize_t)strlen(ALL_IDS);
  close(fd);
  return written;
}

const char *confine_follow(int sync, int proc, pid_t init, int *hidden) {
  char byte, path[48];
  if (read(sync, &byte, 1) != 1) return "user namespace";
  if (!write_map(proc, init, "uid_map") || !write_map(proc, init, "gid_map")) return "map ids";
  int process = (int)syscall(SYS_pidfd_open, init, 0);
  if (process < 0 || setns(process, CLONE_NEWNS | CLONE_NEWUTS) != 0) return "follow init";
  close(process);
  if (*hidden >= 0) {
    close(*hidden);
    snprintf(path, sizeof path, "%d/cwd", init);
    if ((*hidden = openat(proc, path, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) return "hidden place";
  }
  return write(sync, &byte, 1) == 1 ? NULL : "user namespace";
}
