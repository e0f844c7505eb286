// The disk of a machine that is paused, as a clone of its image.
#ifndef CLOCHE_KEEPER_DISK_H
#define CLOCHE_KEEPER_DISK_H

// `clone` becomes its descriptor. 0, or another value once it was complained of.
int disk_sync_clone(int mount_fd, const char *disk, const char *destination, int *clone, long *clone_us);

#endif
