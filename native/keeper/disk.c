#define _GNU_SOURCE
#include "disk.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "report.h"

static int clone_file(const char *source, const char *destination, int *clone) {
  int from = open(source, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (from < 0) return complain("disk image"), -1;
  *clone = open(destination, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (*clone < 0) return complain("disk clone"), close(from), -1;
  int failed = ioctl(*clone, FICLONE, from);
  if (failed) {
    complain("reflink of the disk");
    close(*clone);
    unlink(destination);
  }
  close(from);
  return failed;
}

/*
 * For a paused machine. Nothing writes to its disk, so all data is on the device after syncfs, and the first mount of the
 * clone replays the journal. FIFREEZE would wait for RCU grace periods, 30 to 150 ms of the pause.
 */
int disk_sync_clone(int mount_fd, const char *disk, const char *destination, int *clone, long *clone_us) {
  if (syncfs(mount_fd)) return complain("syncing the disk"), -1;
  long began = now_us();
  int failed = clone_file(disk, destination, clone);
  *clone_us = now_us() - began;
  return failed;
}
