/* Clones the disk image of a paused machine. */
#ifndef CLOCHE_KEEPER_DISK_H
#define CLOCHE_KEEPER_DISK_H

/* Sets `clone` to a descriptor of the clone. 0; another value after a failure, which is reported on stderr. */
int disk_sync_clone(int mount_fd, const char *disk, const char *destination, int *clone, long *clone_us);

#endif
