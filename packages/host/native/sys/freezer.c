/* Every process of a cgroup stood still for a moment, on the unified hierarchy and on the older one. */
#include "cloche-sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 100000
#define PATIENCE_US 500000

static const struct tree {
  const char *state, *stop, *go, *told_in, *told;
} trees[] = {
    {"cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"},
    {"freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"},
};

static int say(int dir, const struct tree *tree, const char *what) {
  int fd = openat(dir, tree->state, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t wrote = write(fd, what, strlen(what));
  close(fd);
  return wrote < 0 ? -1 : 0;
}

static int is_still(int dir, const struct tree *tree) {
  char text[256];
  int fd = openat(dir, tree->told_in, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = 0;
  return strstr(text, tree->told) != NULL;
}

int group_stop(struct group *group, const char *path) {
  *group = (struct group){.dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (group->dir < 0) return -1;
  group->tree = &trees[faccessat(group->dir, trees[0].state, F_OK, 0) == 0 ? 0 : 1];
  /* Somebody else's wish stays as it is. */
  group->was_still = is_still(group->dir, group->tree);
  if (group->was_still || say(group->dir, group->tree, group->tree->stop) == 0) {
    for (uint64_t began = now_us(); now_us() - began < PATIENCE_US;) {
      if (is_still(group->dir, group->tree)) return 0;
      nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
  }
  group_go(group);
  return -1;
}

int group_go(struct group *group) {
  int still = is_still(group->dir, group->tree);
  int failed = group->was_still ? 0 : say(group->dir, group->tree, group->tree->go);
  close(group->dir);
  return still && !failed ? 0 : -1;
}
