/* Copying a tree with its owners, modes, times, links, holes and extended attributes: by request, and for a move between file systems. */
#ifndef CLOCHE_COPY_H
#define CLOCHE_COPY_H

#include <sys/types.h>

/* All bytes of the file `from`, to where `to` stands; `written` counts those that went out. 0 or an errno. */
int copy_bytes(int from, int to, off_t *written);

/* 0 or an errno; what was copied so far is left behind then. `to_name` must not exist. Sockets in a tree are left out; one alone is EXDEV. */
int copy_tree(int from, const char *from_name, int to, const char *to_name);

#endif
