/* `cloche-guest grow-disk PATH DEVICE`: makes the mounted ext4 file system at PATH as large as DEVICE, where it is smaller. */
#ifndef CLOCHE_GROW_H
#define CLOCHE_GROW_H

/* Answers the exit code. */
int grow_disk(const char *path, const char *device);

#endif
