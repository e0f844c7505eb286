/* `cloche-guest grow-disk PATH DEVICE`: grows the mounted ext4 file system at PATH to the size of DEVICE. */
#ifndef CLOCHE_GROW_H
#define CLOCHE_GROW_H

/* Returns the exit code. */
int grow_disk(const char *path, const char *device);

#endif
