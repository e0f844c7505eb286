/* The directories of one watch and their present places, by the kernel's number (wd) of each. */
#ifndef CLOCHE_WATCH_TREE_H
#define CLOCHE_WATCH_TREE_H

#include <stdbool.h>
#include <stddef.h>

struct watched {
  int wd;
  struct watched *parent; /* NULL: the root */
  char *name;
  bool leaving;
  struct watched *previous, *next; /* all of them */
};

struct watch_tree {
  void *by_wd; /* tsearch */
  struct watched *first;
  size_t count;
};

struct watched *watch_tree_find(const struct watch_tree *tree, int wd);
/* The watched directory `name` in `parent`; NULL: not watched. */
struct watched *watch_tree_child(const struct watch_tree *tree, const struct watched *parent, const char *name);
/* Adds a directory. If its number is known, it has moved: its place is updated. */
struct watched *watch_tree_put(struct watch_tree *tree, int wd, struct watched *parent, const char *name);
void watch_tree_move(struct watched *one, struct watched *parent, const char *name);
/* Removes `root` and all directories below; calls `each` with the number of every one. */
void watch_tree_remove(struct watch_tree *tree, struct watched *root, void (*each)(void *context, int wd), void *context);
/* The path of `one` below `root` (absolute, without a final slash), followed by `name` unless NULL. False: too long. */
bool watch_tree_path(const struct watched *one, const char *root, const char *name, char out[4096]);

#endif
