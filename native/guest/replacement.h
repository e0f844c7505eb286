/*
 * Which files of ours have just taken the place of others: a watch sees only that they came, by a rename from out of sight, and would
 * call them new.
 */
#ifndef CLOCHE_REPLACEMENT_H
#define CLOCHE_REPLACEMENT_H

#include <stdbool.h>
#include <sys/stat.h>

/* Before it is renamed. */
void replacement_note(const struct stat *st);
bool replacement_known(const struct stat *st);

#endif
