/* Copying a tree with its owners, modes, times and links, as a move between file systems needs it. */
#ifndef CLOCHE_COPY_H
#define CLOCHE_COPY_H

/* 0 or an errno; what was copied so far is left behind then. `to_name` must not exist. Sockets in a tree are left out; one alone is EXDEV. */
int copy_tree(int from, const char *from_name, int to, const char *to_name);

#endif
