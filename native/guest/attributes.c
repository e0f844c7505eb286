#include "attributes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define COUNT_MAX 256

static bool is_users(const char *name) { return strncmp(name, "user.", 5) == 0 && name[5] != 0; }

void put_attributes(struct bytes *b, const char *path, bool follow) {
  char names[ATTRIBUTES_MAX], value[ATTRIBUTES_MAX];
  size_t counted = b->size, returned = 0;
  uint32_t count = 0;
  put_u32(b, 0);
  ssize_t size = (follow ? listxattr : llistxattr)(path, names, sizeof names);
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
    const char *name = names + at;
    if (!is_users(name)) continue;
    ssize_t n = (follow ? getxattr : lgetxattr)(path, name, value, sizeof value);
    if (n < 0 || returned + strlen(name) + (size_t)n > ATTRIBUTES_MAX) continue;
    returned += strlen(name) + (size_t)n;
    put_string(b, name);
    put_u32(b, (uint32_t)n);
    put_raw(b, value, (size_t)n);
    count++;
  }
  /* Little-endian, like every number in a frame. */
  for (int i = 0; i < 4; i++) b->data[counted + (size_t)i] = (uint8_t)(count >> (8 * i));
}

bool attributes_take(struct cursor *c, struct attributes *out) {
  uint8_t *start = c->at;
  uint32_t count = take_u32(c);
  bool good = count <= COUNT_MAX;
  for (uint32_t i = 0; good && i < count; i++) {
    size_t size;
    good = is_users(take_string(c));
    take_bytes(c, &size);
  }
  *out = (struct attributes){0};
  if (c->bad || !good) return false;
  if (count == 0) return true;
  out->size = (size_t)(c->at - start);
  out->list = malloc(out->size);
  if (!out->list) _exit(70);
  memcpy(out->list, start, out->size);
  return true;
}

int attributes_set(int fd, const struct attributes *attributes) {
  if (!attributes->list) return 0;
  struct cursor c = {.at = attributes->list, .end = attributes->list + attributes->size};
  for (uint32_t left = take_u32(&c); left > 0; left--) {
    size_t size;
    char *name = take_string(&c);
    uint8_t *value = take_bytes(&c, &size);
    if (fsetxattr(fd, name, value, size, 0) != 0) return errno;
  }
  return 0;
}

void attributes_free(struct attributes *attributes) { free(attributes->list); }
