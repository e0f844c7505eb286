/*
 * Remembers files of ours that have just replaced others: a watch sees only a rename from a hidden place, and would report
 * the files as new.
 */
#ifndef CLOCHE_REPLACEMENT_H
#define CLOCHE_REPLACEMENT_H

#include <stdbool.h>
#include <sys/stat.h>

/* Call before the rename. */
void replacement_note(const struct stat *st);
bool replacement_known(const struct stat *st);

#endif
