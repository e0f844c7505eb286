/* Opening a directory without following a link that somebody put in its place. */
#ifndef CLOCHE_DIRECTORY_H
#define CLOCHE_DIRECTORY_H

/* The directory `name` itself, for reading; -1 with errno: ENOTDIR where it is anything else, a link to a directory included. */
int open_directory_itself(int at, const char *name);

#endif
