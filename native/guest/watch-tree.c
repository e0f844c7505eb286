#include "watch-tree.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_wd(const void *a, const void *b) {
  int left = ((const struct watched *)a)->wd, right = ((const struct watched *)b)->wd;
  return left < right ? -1 : left > right;
}

struct watched *watch_tree_find(const struct watch_tree *tree, int wd) {
  struct watched wanted = {.wd = wd}, *const *found = tfind(&wanted, &tree->by_wd, by_wd);
  return found ? *found : NULL;
}

struct watched *watch_tree_child(const struct watch_tree *tree, const struct watched *parent, const char *name) {
  struct watched *one = tree->first;
  while (one && !(one->parent == parent && strcmp(one->name, name) == 0)) one = one->next;
  return one;
}

void watch_tree_move(struct watched *one, struct watched *parent, const char *name) {
  char *copy = strdup(name);
  if (!copy) _exit(70);
  free(one->name);
  one->name = copy;
  one->parent = parent;
}

/* Whether `one` is `root` or below it: a number that the kernel reuses may belong to a directory above. */
static bool lies_in(const struct watched *one, const struct watched *root) {
  while (one && one != root) one = one->parent;
  return one != NULL;
}

struct watched *watch_tree_put(struct watch_tree *tree, int wd, struct watched *parent, const char *name) {
  struct watched *one = watch_tree_find(tree, wd);
  if (one) {
    if (one->parent && !lies_in(parent, one)) watch_tree_move(one, parent, name);
    return one;
  }
  one = calloc(1, sizeof *one);
  if (!one) _exit(70);
  one->wd = wd;
  watch_tree_move(one, parent, name);
  one->next = tree->first;
  if (tree->first) tree->first->previous = one;
  tree->first = one;
  tree->count++;
  if (!tsearch(one, &tree->by_wd, by_wd)) _exit(70);
  return one;
}

void watch_tree_remove(struct watch_tree *tree, struct watched *root, void (*each)(void *context, int wd), void *context) {
  /* Mark all before any is removed, because each is found through its parents. */
  for (struct watched *one = tree->first; one; one = one->next) one->leaving = lies_in(one, root);
  for (struct watched *one = tree->first, *next; one; one = next) {
    next = one->next;
    if (!one->leaving) continue;
    each(context, one->wd);
    tdelete(one, &tree->by_wd, by_wd);
    if (one->previous) one->previous->next = one->next;
    else tree->first = one->next;
    if (one->next) one->next->previous = one->previous;
    tree->count--;
    free(one->name);
    free(one);
  }
}

bool watch_tree_path(const struct watched *one, const char *root, const char *name, char out[4096]) {
  size_t at = 4095, size;
  out[at] = 0;
  for (const char *part = name; one || part; part = NULL) {
    if (!part) {
      if (!one->parent) break;
      part = one->name;
      one = one->parent;
    }
    size = strlen(part);
    if (size + 1 > at) return false;
    at -= size;
    memcpy(out + at, part, size);
    out[--at] = '/';
  }
  size = strlen(root);
  if (size > at) return false;
  at -= size;
  memcpy(out + at, root, size);
  memmove(out, out + at, 4096 - at);
  if (*out == 0) strcpy(out, "/");
  return true;
}
