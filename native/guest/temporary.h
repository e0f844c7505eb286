/* Our own files that are about to take the place of a user's: made out of sight where that can be, never listed, packed, copied or told of. */
#ifndef CLOCHE_TEMPORARY_H
#define CLOCHE_TEMPORARY_H

#include <stdbool.h>

#define TEMPORARY_ROOM 64

void temporary_name(char out[TEMPORARY_ROOM]);
bool is_temporary_name(const char *name);

/*
 * The place out of sight: the directory of the users' disk that procfs is mounted over. Whoever opened it before reaches it
 * still, and a rename from there into any directory of that mount is one step. Called before procfs is mounted; what an agent
 * that was killed left there is removed. -1: there is none.
 */
int temporary_open_hidden(void);
/* From now on it is used. */
void temporary_hide_in(int fd);
/*
 * Where to make what is to be renamed into `at`: the hidden place, or `at` itself where that is on another file system. Who acts as a
 * user gets a directory of the hidden place that users may rename from, so that the kernel says whether they may into `at`.
 */
int temporary_place(int at);

#endif
