#include "grow.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

/* From the kernel's fs/ext4/ext4.h; takes the new number of blocks. Does nothing if the file system has as many. */
#define EXT4_IOC_RESIZE_FS _IOW('f', 16, uint64_t)

static int failed(const char *step) {
  fprintf(stderr, "%s: %s\n", step, strerror(errno));
  return 1;
}

int grow_disk(const char *path, const char *device) {
  int disk = open(device, O_RDONLY | O_CLOEXEC);
  uint64_t bytes;
  if (disk < 0 || ioctl(disk, BLKGETSIZE64, &bytes) != 0) return failed("size of the device");
  close(disk);
  int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct statfs fs;
  if (root < 0 || fstatfs(root, &fs) != 0) return failed("file system");
  uint64_t blocks = bytes / (uint64_t)fs.f_bsize;
  if (ioctl(root, EXT4_IOC_RESIZE_FS, &blocks) != 0) return failed("resize");
  close(root);
  return 0;
}
