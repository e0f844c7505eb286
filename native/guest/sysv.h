/* Removes SysV message queues. They outlive the program that filled them, so its death frees none of their kernel memory. */
#ifndef CLOCHE_SYSV_H
#define CLOCHE_SYSV_H

#include <sys/types.h>

/*
 * In the ipc namespace of `process`: if all queues together hold 32 MiB or more, removes those whose last sender holds the most.
 * `proc_fd`: a procfs that shows `process`.
 */
void sysv_remove(int proc_fd, pid_t process);

#endif
