/* Finding and signalling the descendants of a process, by reading procfs. */
#ifndef CLOCHE_TREE_H
#define CLOCHE_TREE_H

#include <sys/types.h>

/* Sends `signal` to every living descendant of `root` (not to root itself) and returns how many there were. `proc_fd` is a directory of procfs. */
int tree_signal(int proc_fd, pid_t root, int signal);

/* Sends `signal` to the direct children of `parent`, a process of one thread; how many, or -1 where the system does not list them. */
int children_signal(int proc_fd, pid_t parent, int signal);

#endif
