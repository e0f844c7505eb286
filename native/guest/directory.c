#include "directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* gVisor ignores O_NOFOLLOW together with O_DIRECTORY: open with O_PATH, check, then open through that descriptor. */
int open_directory_itself(int at, const char *name) {
  int held = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (held < 0) return -1;
  struct stat st;
  int fd = -1;
  if (fstat(held, &st) != 0) {
    /* errno is set. */
  } else if (!S_ISDIR(st.st_mode)) {
    errno = ENOTDIR;
  } else {
    fd = openat(held, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  int error = errno;
  close(held);
  errno = error;
  return fd;
}
