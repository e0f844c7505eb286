/* Removing a directory with all that is in it, whatever its depth and whoever changes it meanwhile. No symlink is followed. */
#ifndef CLOCHE_REMOVE_TREE_H
#define CLOCHE_REMOVE_TREE_H

/* Removes what is in the directory and, unless it is `.`, the directory `name` itself. 0 or an errno. */
int remove_tree(int at, const char *name);

#endif
