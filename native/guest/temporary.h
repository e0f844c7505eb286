/* Our temporary files that are about to replace a user's file: hidden if possible; never listed, packed, copied or reported as events. */
#ifndef CLOCHE_TEMPORARY_H
#define CLOCHE_TEMPORARY_H

#include <stdbool.h>

#define TEMPORARY_ROOM 64

void temporary_name(char out[TEMPORARY_ROOM]);
bool is_temporary_name(const char *name);

/*
 * Opens the hidden place: the directory of the users' disk that procfs is mounted over. A descriptor opened before that still
 * reaches it, and a rename from there into any directory of that mount is atomic. Call before procfs is mounted. Removes files
 * that a killed agent left there. -1: there is none.
 */
int temporary_open_hidden(void);
/* From now on the hidden place `fd` is used. */
void temporary_hide_in(int fd);
/*
 * The directory for a file that will be renamed into `at`: the hidden place, or `at` itself if that is on another file system. A thread
 * with a user's identity gets a directory in the hidden place that users may rename from, so that the kernel checks its rights on `at`.
 */
int temporary_place(int at);

#endif
