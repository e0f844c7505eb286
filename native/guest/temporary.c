#include "temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "identity.h"
#include "remove-tree.h"

#define PREFIX ".cloche-tmp-"
#define DIGITS 16

void temporary_name(char out[TEMPORARY_ROOM]) {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)gettid();
  snprintf(out, TEMPORARY_ROOM, PREFIX "%016llx", (unsigned long long)random);
}

bool is_temporary_name(const char *name) {
  const char *digits = name + strlen(PREFIX);
  return strncmp(name, PREFIX, strlen(PREFIX)) == 0 && strlen(digits) == DIGITS && strspn(digits, "0123456789abcdef") == DIGITS;
}

static int hidden = -1, users = -1;

int temporary_open_hidden(void) {
  int fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC), list = fd < 0 ? -1 : openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = list < 0 ? NULL : fdopendir(list);
  if (!dir) {
    if (list >= 0) close(list);
    return fd;
  }
  for (struct dirent *entry; (entry = readdir(dir));)
    if (is_temporary_name(entry->d_name) && unlinkat(fd, entry->d_name, 0) != 0 && (errno == EISDIR || errno == EPERM))
      remove_tree(fd, entry->d_name);
  closedir(dir);
  return fd;
}

void temporary_hide_in(int fd) { hidden = fd; }

/* Makes the users' directory in the hidden place. No path leads there. It has a temporary name, so the next start removes it. */
static void open_users(void) {
  const struct identity *identity = identity_current();
  identity_assume(NULL);
  char name[TEMPORARY_ROOM];
  temporary_name(name);
  int fd = mkdirat(hidden, name, 0700) == 0 ? openat(hidden, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (fd >= 0 && fchmodat(hidden, name, 0777, 0) == 0) users = fd;
  identity_assume(identity);
}

int temporary_place(int at) {
  static pthread_once_t opened = PTHREAD_ONCE_INIT;
  struct stat there, here;
  if (hidden < 0 || fstat(hidden, &there) != 0 || fstat(at, &here) != 0 || there.st_dev != here.st_dev) return at;
  if (!identity_is_limited()) return hidden;
  pthread_once(&opened, open_users);
  return users >= 0 ? users : at;
}
