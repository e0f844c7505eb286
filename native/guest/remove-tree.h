/* Removes a directory with its content, at any depth and under concurrent changes. Never follows a symlink. */
#ifndef CLOCHE_REMOVE_TREE_H
#define CLOCHE_REMOVE_TREE_H

/* Removes the content of the directory `name` and, unless it is `.`, the directory itself. 0 or an errno. */
int remove_tree(int at, const char *name);

#endif
