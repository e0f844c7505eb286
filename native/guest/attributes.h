/* The extended attributes of a file that are its user's own (`user.*`): told of entries where they are asked for, given to a file that is written. */
#ifndef CLOCHE_ATTRIBUTES_H
#define CLOCHE_ATTRIBUTES_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

/* Bytes of names and values of one file; what an entry has beyond them is left out. ext4 keeps no more either. */
#define ATTRIBUTES_MAX 4096

/* As a list of u32 count, and of each its name as a string, u32 size and the bytes of its value. `follow`: of what a final link leads to; a link has none. */
void put_attributes(struct bytes *b, const char *path, bool follow);

/* Such a list of a request, copied. */
struct attributes {
  uint8_t *list;
  size_t size;
};
/* False where the cursor has no such list, or one with a name that is not a user's. */
bool attributes_take(struct cursor *c, struct attributes *out);
/* Gives them to a file; 0 or an errno. */
int attributes_set(int fd, const struct attributes *attributes);
void attributes_free(struct attributes *attributes);

#endif
