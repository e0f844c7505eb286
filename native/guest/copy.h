/* Copies a tree with owners, modes, times, links, holes and extended attributes: on request, and for a move between file systems. */
#ifndef CLOCHE_COPY_H
#define CLOCHE_COPY_H

#include <sys/types.h>

/* Copies all bytes of `from` to the present offset of `to`. `written`: how many were written. 0 or an errno. */
int copy_bytes(int from, int to, off_t *written);

/* 0 or an errno, which leaves a partial copy. `to_name` must not exist. Skips sockets in a tree; a socket alone is EXDEV. */
int copy_tree(int from, const char *from_name, int to, const char *to_name);

#endif
