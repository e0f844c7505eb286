/* Opens a directory without following a link that has replaced it. */
#ifndef CLOCHE_DIRECTORY_H
#define CLOCHE_DIRECTORY_H

/* Opens the directory `name` for reading; -1 with errno: ENOTDIR for anything else, also for a link to a directory. */
int open_directory_itself(int at, const char *name);

#endif
