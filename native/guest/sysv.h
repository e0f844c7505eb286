/* SysV message queues, which outlive the program that filled them: its death gives nothing of the kernel's memory back. */
#ifndef CLOCHE_SYSV_H
#define CLOCHE_SYSV_H

#include <sys/types.h>

/*
 * Removes the queues of the sender that has put most into them, where all hold more than a few MiB: in the ipc namespace of
 * `process`, which procfs below `proc_fd` shows.
 */
void sysv_remove(int proc_fd, pid_t process);

#endif
