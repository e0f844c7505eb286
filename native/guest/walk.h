/*
 * Visiting a tree of any depth, with a bounded stack and a bounded number of open descriptors: the depth of a tree is its
 * user's choice. Nothing here follows a symlink.
 */
#ifndef CLOCHE_WALK_H
#define CLOCHE_WALK_H

#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

/* Descriptors one trail holds at most: deeper directories are left by `..`, checked to be the one they were entered from. */
#define TRAIL_OPEN_MAX 16

struct trail_level {
  int fd; /* of the directory it was entered from; -1: reached by `..` */
  dev_t device;
  ino_t inode;
};

/* A position in a tree: the open directory `fd`, and the way back to where it started. */
struct trail {
  int fd;
  struct trail_level *levels;
  size_t depth, room;
};

/* Takes `fd`, an open directory. */
void trail_start(struct trail *trail, int fd);
/* Into the directory `name`; 0 or an errno, and then it has not moved. */
int trail_down(struct trail *trail, const char *name);
/* Back to the directory above; EBUSY where somebody moved the one that is left. */
int trail_up(struct trail *trail);
/* Closes what is open. */
void trail_end(struct trail *trail);

/* Names of directories of one walk that are still to be entered, at most: E2BIG beyond. */
#define WALK_NAMES_MAX (64u << 20)

enum { WALK_ON = 0, WALK_INTO = -1 };

/* What is done on the way. `at` is the directory's descriptor; an errno ends the walk with it. */
struct visitor {
  /* An entry of the directory. WALK_INTO: it is a directory, and is entered once all entries beside it were seen. `type` is a DT_ of dirent.h. */
  int (*entry)(void *context, int at, const char *name, unsigned char type);
  /* In the directory `name` now. WALK_ON: its entries come next; WALK_INTO makes no sense. */
  int (*enter)(void *context, int at, const char *name);
  /* About to leave it. */
  int (*leave)(void *context, int at, const char *name);
  /* It could not be entered or read. 0: the walk goes on. */
  int (*missed)(void *context, const char *name, int error);
};

/* Visits everything in `fd`, which it closes. Each directory's own entries come before those below it. 0 or an errno. */
int walk_tree(int fd, const struct visitor *visitor, void *context);

/* Whether it is `.` or `..`. */
bool is_dots(const char *name);

#endif
