/* Reads procfs to find and signal the descendants of a process. */
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
  uint64_t system_ticks; /* kernel time of the process and its ended children */
  uint64_t user_ticks;   /* their user time */
};

struct process_list {
  struct process *items;
  size_t count;
};

/* All processes of a procfs, sorted by pid; the caller frees `items`. */
struct process_list processes_read(int proc_fd);
/* The process with this pid; NULL: none. */
const struct process *process_find(const struct process_list *list, pid_t pid);

/* Sends `signal` to every living descendant of `root` (not to root itself) and returns how many there were. `proc_fd` is a directory of procfs. */
int tree_signal(int proc_fd, pid_t root, int signal);

/* Sends `signal` to the direct children of `parent`, a process of one thread. Returns how many, or -1 if they cannot be listed. */
int children_signal(int proc_fd, pid_t parent, int signal);

#endif
