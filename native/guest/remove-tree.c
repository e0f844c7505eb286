#include "remove-tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "directory.h"
#include "walk.h"

#define REMOVE_ROUNDS 1000 /* bounds scans while another program keeps filling the tree */

/*
 * Removes the entries of `fd` up to the first directory that is not empty. 0: all are removed; -1: `child` is that directory; or an errno.
 */
static int remove_shallow(int fd, char child[256]) {
  int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = copy < 0 ? NULL : fdopendir(copy);
  if (!dir) {
    int error = errno;
    if (copy >= 0) close(copy);
    return error;
  }
  int result = 0;
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));) {
    if (is_dots(entry->d_name)) continue;
    if (entry->d_type != DT_DIR && (unlinkat(fd, entry->d_name, 0) == 0 || errno == ENOENT)) continue;
    if (entry->d_type != DT_DIR && errno != EISDIR && errno != EPERM) result = errno;
    else if (unlinkat(fd, entry->d_name, AT_REMOVEDIR) == 0 || errno == ENOENT) continue;
    else if (errno == ENOTEMPTY || errno == EEXIST) {
      snprintf(child, 256, "%s", entry->d_name);
      result = -1;
    } else {
      result = errno;
    }
  }
  closedir(dir);
  return result;
}

struct level {
  dev_t device;
  ino_t inode;
  char name[256];
  int rounds;
};

/* Uses one descriptor at any depth: the way back is `..`, checked to be the directory that it was entered from. */
int remove_tree(int at, const char *name) {
  int fd = open_directory_itself(at, name);
  if (fd < 0) return errno;
  struct level *levels = NULL;
  size_t depth = 0, room = 0;
  int error = 0, rounds = 0;
  struct stat st;
  while (!error) {
    char child[256];
    int result = remove_shallow(fd, child);
    if (result > 0) {
      error = result;
    } else if (result < 0) {
      if (++rounds > REMOVE_ROUNDS * 1000) {
        error = EBUSY;
        break;
      }
      int next = open_directory_itself(fd, child);
      if (next < 0) {
        error = errno == ENOENT ? 0 : errno;
        continue;
      }
      if (depth == room) {
        room = room ? room * 2 : 16;
        levels = realloc(levels, room * sizeof *levels);
        if (!levels) _exit(70);
      }
      if (fstat(fd, &st) != 0) error = errno;
      levels[depth] = (struct level){.device = st.st_dev, .inode = st.st_ino};
      strcpy(levels[depth++].name, child);
      close(fd);
      fd = next;
    } else if (depth == 0) {
      break;
    } else {
      struct level *level = &levels[--depth];
      int parent = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (parent < 0) {
        error = errno;
        break;
      }
      close(fd);
      fd = parent;
      if (fstat(fd, &st) != 0 || st.st_dev != level->device || st.st_ino != level->inode) error = EBUSY; /* moved under us */
      else if (unlinkat(fd, level->name, AT_REMOVEDIR) != 0 && errno != ENOENT && errno != ENOTEMPTY) error = errno;
    }
  }
  close(fd);
  free(levels);
  if (error || strcmp(name, ".") == 0) return error;
  return unlinkat(at, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}
