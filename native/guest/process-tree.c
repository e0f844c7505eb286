#include "process-tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads a process from its `stat`; false if it is gone. */
static bool read_process(int proc_fd, const char *name, struct process *p) {
  char path[32], text[512];
  snprintf(path, sizeof path, "%.16s/stat", name);
  int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  char *before = strchr(text, '('), *after = strrchr(text, ')'); /* the name between them may contain anything */
  char state;
  int parent, group = 0, session = 0;
  long pages = 0, own = 0, ticks = 0, childrens_own = 0, childrens_ticks = 0, threads = 0;
  if (!before || !after || after < before) return false;
  /* Fields 3 to 6, 14 to 17, 20 and 24. */
  if (sscanf(after + 1, " %c %d %d %d %*s %*s %*s %*s %*s %*s %*s %ld %ld %ld %ld %*s %*s %ld %*s %*s %*s %ld", &state, &parent, &group,
             &session, &own, &ticks, &childrens_own, &childrens_ticks, &threads, &pages) < 2)
    return false;
  *p = (struct process){.pid = atoi(name), .parent = parent, .group = group, .session = session};
  p->dead = state == 'Z' || state == 'X';
  p->stopped = state == 'T' || state == 't';
  p->runs = state == 'R';
  p->system_ticks = (uint64_t)(ticks > 0 ? ticks : 0) + (uint64_t)(childrens_ticks > 0 ? childrens_ticks : 0);
  p->threads = threads > 0 ? (unsigned)threads : 1;
  p->user_ticks = (uint64_t)(own > 0 ? own : 0) + (uint64_t)(childrens_own > 0 ? childrens_own : 0);
  p->rss = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
  *after = 0;
  snprintf(p->name, sizeof p->name, "%s", before + 1);
  return true;
}

struct linux_dirent64 {
  uint64_t d_ino;
  int64_t d_off;
  unsigned short d_reclen;
  unsigned char d_type;
  char d_name[];
};

static size_t read_all(int proc_fd, struct process **list) {
  size_t count = 0, room = 0;
  char buffer[8192] __attribute__((aligned(8)));
  lseek(proc_fd, 0, SEEK_SET);
  for (;;) {
    long n = syscall(SYS_getdents64, proc_fd, buffer, sizeof buffer);
    if (n <= 0) break;
    for (long at = 0; at < n;) {
      struct linux_dirent64 *entry = (void *)(buffer + at);
      at += entry->d_reclen;
      if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
      if (count == room) {
        room = room ? room * 2 : 256;
        *list = realloc(*list, room * sizeof **list);
        if (!*list) _exit(70);
      }
      if (read_process(proc_fd, entry->d_name, *list + count)) count++;
    }
  }
  return count;
}

static int by_pid(const void *a, const void *b) {
  pid_t left = ((const struct process *)a)->pid, right = ((const struct process *)b)->pid;
  return left < right ? -1 : left > right;
}

struct process_list processes_read(int proc_fd) {
  struct process_list list = {0};
  list.count = read_all(proc_fd, &list.items);
  if (list.count > 0) qsort(list.items, list.count, sizeof *list.items, by_pid);
  return list;
}

const struct process *process_find(const struct process_list *list, pid_t pid) {
  struct process wanted = {.pid = pid};
  return list->count > 0 ? bsearch(&wanted, list->items, list->count, sizeof *list->items, by_pid) : NULL;
}

/* Whether a process descends from `root`: follows its parents up to the first process with a known answer. */
static bool descends(struct process *list, size_t count, struct process *p, pid_t root) {
  struct process *at = p;
  for (size_t hops = 0; at && hops <= count; hops++) {
    if (at->known) return at->inside;
    if (at->pid == root) return false; /* root itself is not its descendant */
    if (at->parent == root) return true;
    struct process parent = {.pid = at->parent};
    at = bsearch(&parent, list, count, sizeof *list, by_pid);
  }
  return false;
}

int tree_signal(int proc_fd, pid_t root, int signal) {
  struct process_list all = processes_read(proc_fd);
  struct process *list = all.items;
  size_t count = all.count;
  int alive = 0;
  for (size_t i = 0; i < count; i++) {
    list[i].inside = descends(list, count, &list[i], root);
    list[i].known = true;
    if (!list[i].inside || list[i].dead) continue;
    alive++;
    kill(list[i].pid, signal);
  }
  free(list);
  return alive;
}

int children_signal(int proc_fd, pid_t parent, int signal) {
  char path[64], text[65536];
  snprintf(path, sizeof path, "%d/task/%d/children", parent, parent);
  int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  size_t size = 0;
  for (ssize_t n; size < sizeof text - 1 && (n = read(fd, text + size, sizeof text - 1 - size)) > 0;) size += (size_t)n;
  close(fd);
  text[size] = 0;
  int count = 0;
  for (char *at = text, *end;; at = end) {
    long pid = strtol(at, &end, 10);
    if (end == at || (*end != ' ' && *end != '\n')) break; /* a number that was cut off is not used */
    if (pid > 1 && kill((pid_t)pid, signal) == 0) count++;
  }
  return count;
}
