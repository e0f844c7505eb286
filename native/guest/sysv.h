/*
 * SysV message queues and semaphores, which outlive the program that made them: where they hold much memory of the kernel, the death
 * of that program gives nothing back.
 */
#ifndef CLOCHE_SYSV_H
#define CLOCHE_SYSV_H

#include <sys/types.h>

/*
 * Removes the queues of the sender that has put most into them, and the largest sets of semaphores, where these hold more than a few
 * MiB: in the ipc namespace of `process`, which procfs below `proc_fd` shows.
 */
void sysv_remove(int proc_fd, pid_t process);

#endif
