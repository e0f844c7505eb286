/* Extended attributes of the name space `user.*`: sent with entries on request, and set on files that are written. */
#ifndef CLOCHE_ATTRIBUTES_H
#define CLOCHE_ATTRIBUTES_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

/* Most bytes of names and values of one file, as in ext4; attributes of an entry beyond them are left out. */
#define ATTRIBUTES_MAX 4096

/* Writes a list: u32 count, then for each attribute its name as a string, u32 size and value. `follow`: of a final link's target. */
void put_attributes(struct bytes *b, const char *path, bool follow);

/* Such a list from a request, copied. */
struct attributes {
  uint8_t *list;
  size_t size;
};
/* False if the cursor has no such list, or a name outside `user.*`. */
bool attributes_take(struct cursor *c, struct attributes *out);
/* Sets them on a file; 0 or an errno. */
int attributes_set(int fd, const struct attributes *attributes);
void attributes_free(struct attributes *attributes);

#endif
