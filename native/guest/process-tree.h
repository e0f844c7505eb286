/* Finding and signalling the descendants of a process, by reading procfs. */
#ifndef CLOCHE_PROCESS_TREE_H
#define CLOCHE_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
  pid_t pid, parent, group, session;
  bool inside, known, dead, stopped, runs;
  char name[16];
  unsigned threads;
  uint64_t rss;          /* bytes */
  uint64_t system_ticks; /* the kernel's work for it and for its children that ended */
  uint64_t user_ticks;   /* their own */
};

struct process_list {
  struct process *items;
  size_t count;
};

/* All processes of a procfs, by pid; `items` is the caller's to free. */
struct process_list processes_read(int proc_fd);
/* NULL: not among them. */
const struct process *process_find(const struct process_list *list, pid_t pid);

/* Sends `signal` to every living descendant of `root` (not to root itself) and returns how many there were. `proc_fd` is a directory of procfs. */
int tree_signal(int proc_fd, pid_t root, int signal);

/* Sends `signal` to the direct children of `parent`, a process of one thread; how many, or -1 where the system does not list them. */
int children_signal(int proc_fd, pid_t parent, int signal);

#endif
