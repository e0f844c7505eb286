#define _GNU_SOURCE
#include "machines.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STATE_MAX 256
#define PROBE "probe-"

enum wish { count_only, freeze, thaw };

/* Directory with the groups of machines: the root of the freezer's tree (v1) or of the only tree (v2). */
static int tree = -1;
static int is_v2;
static char sandboxes[64], virtual_machines[64];

int machines_open(const char *cgroups, const char *tag) {
  char path[4096];
  snprintf(path, sizeof path, "%s/cgroup.controllers", cgroups);
  is_v2 = access(path, F_OK) == 0;
  snprintf(path, sizeof path, is_v2 ? "%s" : "%s/freezer", cgroups);
  tree = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (tree < 0) return fprintf(stderr, "%s: %s\n", path, strerror(errno)), -1;
  snprintf(sandboxes, sizeof sandboxes, "cloche-%.40s", tag);
  snprintf(virtual_machines, sizeof virtual_machines, "cloche-%.40s-vm", tag);
  return 0;
}

static int read_state(int group, char state[STATE_MAX]) {
  int fd = openat(group, is_v2 ? "cgroup.events" : "freezer.state", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, state, STATE_MAX - 1);
  if (fd >= 0) close(fd);
  state[n < 0 ? 0 : n] = 0;
  return n < 0 ? -1 : 0;
}

/* On v1 FREEZING is not frozen yet: writing FROZEN again reaches tasks that could not be frozen at first. */
static int is_frozen(const char *state) { return is_v2 ? strstr(state, "frozen 1") != NULL : strncmp(state, "FROZEN", 6) == 0; }

static void write_state(int group, enum wish wish) {
  static int reported; /* A repeated failure is reported once. */
  const char *text = is_v2 ? (wish == freeze ? "1" : "0") : (wish == freeze ? "FROZEN" : "THAWED");
  int fd = openat(group, is_v2 ? "cgroup.freeze" : "freezer.state", O_WRONLY | O_CLOEXEC);
  if ((fd < 0 || write(fd, text, strlen(text)) < 0) && errno != ENOENT && errno != ENODEV && errno != reported)
    fprintf(stderr, "%s a machine: %s\n", wish == freeze ? "freezing" : "thawing", strerror(reported = errno));
  if (fd >= 0) close(fd);
}

static void visit(int group, enum wish wish, struct count *count) {
  char state[STATE_MAX];
  if (read_state(group, state)) return; /* The group is gone. */
  /* Thaw in any case: on v2 the state does not show a freeze under way. */
  if (wish == thaw || (wish == freeze && !is_frozen(state))) {
    write_state(group, wish);
    if (read_state(group, state)) return;
  }
  count->machines++;
  count->frozen += is_frozen(state);
}

static void visit_below(const char *parent, const char *below, enum wish wish, struct count *count) {
  int fd = openat(tree, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *directory = fd < 0 ? NULL : fdopendir(fd);
  if (!directory) {
    if (fd >= 0) close(fd);
    return; /* No machine of this kind was ever made. */
  }
  for (struct dirent *entry; (entry = readdir(directory));) {
    char path[512];
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || !strncmp(entry->d_name, PROBE, strlen(PROBE))) continue;
    snprintf(path, sizeof path, "%s%s", entry->d_name, below);
    int group = openat(fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (group < 0) continue; /* A sandbox being made: no program runs in it before it has its group. */
    visit(group, wish, count);
    close(group);
  }
  closedir(directory);
}

static struct count visit_all(enum wish wish) {
  struct count count = {0, 0};
  visit_below(sandboxes, "/sentry", wish, &count);
  visit_below(virtual_machines, "", wish, &count);
  return count;
}

struct count machines_freeze(int frozen) { return visit_all(frozen ? freeze : thaw); }
struct count machines_count(void) { return visit_all(count_only); }
