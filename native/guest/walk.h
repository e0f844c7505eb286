/*
 * Visits a tree of any depth with a bounded stack and a bounded number of descriptors, because users choose the depth. Never
 * follows a symlink.
 */
#ifndef CLOCHE_WALK_H
#define CLOCHE_WALK_H

#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

/* Most descriptors of one trail. The way back from deeper directories is `..`, checked to be the directory it was entered from. */
#define TRAIL_OPEN_MAX 16

struct trail_level {
  int fd; /* the directory above; -1: go back by `..` */
  dev_t device;
  ino_t inode;
};

/* A position in a tree: the open directory `fd`, and the way back to where it started. */
struct trail {
  int fd;
  struct trail_level *levels;
  size_t depth, room;
};

/* Starts at the open directory `fd`, which the trail owns from then on. */
void trail_start(struct trail *trail, int fd);
/* Enters the directory `name`; 0, or an errno and the trail has not moved. */
int trail_down(struct trail *trail, const char *name);
/* Goes back to the directory above; EBUSY if the directory that is left was moved. */
int trail_up(struct trail *trail);
/* Closes all descriptors. */
void trail_end(struct trail *trail);

/* Most bytes of names of directories still to enter in one walk: E2BIG beyond. */
#define WALK_NAMES_MAX (64u << 20)

enum { WALK_ON = 0, WALK_INTO = -1 };

/* Callbacks of a walk. `at`: descriptor of the directory. An errno as the result ends the walk with that errno. */
struct visitor {
  /* For each entry of a directory. WALK_INTO: enter this directory after all entries beside it were seen. `type`: a DT_ of dirent.h. */
  int (*entry)(void *context, int at, const char *name, unsigned char type);
  /* After entering the directory `name`. WALK_ON: its entries come next. Not WALK_INTO. */
  int (*enter)(void *context, int at, const char *name);
  /* Before leaving the directory. */
  int (*leave)(void *context, int at, const char *name);
  /* The directory could not be entered or read. 0: continue the walk. */
  int (*missed)(void *context, const char *name, int error);
};

/* Visits everything in `fd` and closes it. The entries of a directory come before those of its subdirectories. 0 or an errno. */
int walk_tree(int fd, const struct visitor *visitor, void *context);

/* Whether the name is `.` or `..`. */
bool is_dots(const char *name);

#endif
