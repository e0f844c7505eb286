/* The directories that one watch hears of, by the kernel's number of each: where each lies now. */
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
/* Of that name in that directory; NULL: it is not watched. */
struct watched *watch_tree_child(const struct watch_tree *tree, const struct watched *parent, const char *name);
/* One that is known by its number has moved. */
struct watched *watch_tree_put(struct watch_tree *tree, int wd, struct watched *parent, const char *name);
void watch_tree_move(struct watched *one, struct watched *parent, const char *name);
/* With all that lie below; `each` is called with their numbers, `root` last. */
void watch_tree_remove(struct watch_tree *tree, struct watched *root, void (*each)(void *context, int wd), void *context);
/* Its path below `root`, an absolute path without a slash at the end, with `name` behind it (NULL: none). False: no path is so long. */
bool watch_tree_path(const struct watched *one, const char *root, const char *name, char out[4096]);

#endif
