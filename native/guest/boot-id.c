#include "boot-id.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define FLAGS (MS_NOSUID | MS_NODEV | MS_NOEXEC)

/* As systemd-nspawn does it: a file bound over the kernel's, and removed by its name. */
int set_boot_id(const char *id) {
  char path[] = "/run/.boot-id-XXXXXX", line[64];
  int size = snprintf(line, sizeof line, "%s\n", id);
  if (size < 0 || size >= (int)sizeof line) return EINVAL;
  int fd = mkostemp(path, O_CLOEXEC);
  if (fd < 0) return errno;
  int error = write(fd, line, (size_t)size) == size && fchmod(fd, 0444) == 0 ? 0 : errno ? errno : EIO;
  close(fd);
  /* That of an earlier clone. */
  if (!error) umount2(BOOT_ID, MNT_DETACH);
  if (!error && mount(path, BOOT_ID, NULL, MS_BIND, NULL) != 0) error = errno;
  if (!error && mount(NULL, BOOT_ID, NULL, MS_REMOUNT | MS_BIND | FLAGS | MS_RDONLY, NULL) != 0) error = errno;
  unlink(path);
  return error;
}
