#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tar.h"

#define EXTENDED_MAX (1u << 20) /* bytes of one pax or long-name header */
#define XATTR_BYTES_MAX (1u << 20) /* extended attributes of one entry; more are left out */

static char *copy_of(const char *text, size_t size) {
  char *copy = malloc(size + 1);
  if (!copy) tar_failed(ENOMEM, "");
  memcpy(copy, text, size);
  copy[size] = 0;
  return copy;
}

static void set_text(char **slot, const char *value, size_t size) {
  if (memchr(value, 0, size)) tar_invalid("a pax record has a name with a NUL in it");
  free(*slot);
  *slot = copy_of(value, size);
}

/* Reads decimal digits from `*at` on; false: none, or too many. */
static bool digits(const char **at, const char *end, uint64_t *value) {
  const char *start = *at;
  for (*value = 0; *at < end && **at >= '0' && **at <= '9'; ++*at) {
    if (*value > (uint64_t)INT64_MAX / 10 - 1) return false;
    *value = *value * 10 + (uint64_t)(**at - '0');
  }
  return *at > start;
}

static bool whole_number(const char *text, size_t size, int64_t *value) {
  const char *at = text, *end = text + size;
  bool negative = at < end && *at == '-';
  uint64_t number;
  at += negative;
  if (!digits(&at, end, &number) || at != end) return false;
  *value = negative ? -(int64_t)number : (int64_t)number;
  return true;
}

/* Reads seconds, which may be negative and have a fraction. */
static bool time_value(const char *text, size_t size, struct timespec *value) {
  const char *at = text, *end = text + size;
  bool negative = at < end && *at == '-';
  uint64_t seconds;
  at += negative;
  if (!digits(&at, end, &seconds)) return false;
  long nanoseconds = 0;
  if (at < end && *at == '.') {
    long unit = 100000000;
    for (at++; at < end && *at >= '0' && *at <= '9'; at++, unit /= 10) nanoseconds += unit * (*at - '0');
  }
  if (at != end) return false;
  *value = (struct timespec){negative ? -(time_t)seconds : (time_t)seconds, nanoseconds};
  if (negative && nanoseconds > 0) *value = (struct timespec){value->tv_sec - 1, 1000000000 - nanoseconds};
  return true;
}

static void add_xattr(struct tar_extras *x, const char *name, size_t name_size, const char *value, size_t size) {
  if (x->xattr_bytes + name_size + size > XATTR_BYTES_MAX || memchr(name, 0, name_size)) return;
  x->xattr_bytes += name_size + size;
  x->xattrs = realloc(x->xattrs, (x->xattr_count + 1) * sizeof *x->xattrs);
  if (!x->xattrs) tar_failed(ENOMEM, "");
  x->xattrs[x->xattr_count++] = (struct tar_xattr){copy_of(name, name_size), (uint8_t *)copy_of(value, size), size};
}

static bool is_key(const char *key, size_t size, const char *name) { return size == strlen(name) && memcmp(key, name, size) == 0; }

static bool begins(const char *key, size_t size, const char *start) {
  return size > strlen(start) && memcmp(key, start, strlen(start)) == 0;
}

/* Ignores names of owners: they are another machine's accounts, and ids always come with them. */
static void take_record(struct tar_extras *x, const char *key, size_t key_size, const char *value, size_t size) {
  int64_t number = 0;
  bool right = true;
  if (is_key(key, key_size, "path")) {
    set_text(&x->path, value, size);
  } else if (is_key(key, key_size, "linkpath")) {
    set_text(&x->link, value, size);
  } else if (is_key(key, key_size, "size")) {
    right = x->has_size = whole_number(value, size, &number) && number >= 0;
    x->size = (uint64_t)number;
  } else if (is_key(key, key_size, "uid")) {
    right = x->has_uid = whole_number(value, size, &x->uid);
  } else if (is_key(key, key_size, "gid")) {
    right = x->has_gid = whole_number(value, size, &x->gid);
  } else if (is_key(key, key_size, "mtime")) {
    right = x->has_mtime = time_value(value, size, &x->mtime);
  } else if (is_key(key, key_size, "atime")) {
    right = x->has_atime = time_value(value, size, &x->atime);
  } else if (begins(key, key_size, PAX_XATTR)) {
    add_xattr(x, key + strlen(PAX_XATTR), key_size - strlen(PAX_XATTR), value, size);
  } else if (begins(key, key_size, "GNU.sparse.")) {
    tar_invalid("sparse entries are not supported; pack without --sparse");
  }
  if (!right) tar_invalid("a pax record has a number or a time that is none");
}

/* Reads records "size key=value\n", whose size counts itself. Ignores empty values. */
static void take_records(struct tar_extras *x, const char *text, size_t size) {
  const char *end = text + size;
  for (const char *at = text; at < end;) {
    const char *start = at;
    uint64_t record;
    if (!digits(&at, end, &record) || at == end || *at != ' ' || record > (uint64_t)(end - start) || start + record <= at + 1 ||
        start[record - 1] != '\n')
      tar_invalid("a pax record is malformed");
    const char *key = at + 1, *stop = start + record - 1, *middle = memchr(key, '=', (size_t)(stop - key));
    if (!middle || middle == key) tar_invalid("a pax record has no name or no value");
    if (stop > middle + 1) take_record(x, key, (size_t)(middle - key), middle + 1, (size_t)(stop - middle - 1));
    at = start + record;
  }
}

void tar_read_extended(char type, uint64_t size, struct tar_extras *x) {
  if (size > EXTENDED_MAX) tar_invalid("an extended header is larger than 1 MiB");
  char *text = malloc((size_t)size + 1);
  if (!text) tar_failed(ENOMEM, "");
  if (tar_read(text, (size_t)size) != size) tar_invalid("it ends in an extended header");
  text[size] = 0;
  tar_skip(tar_padded(size) - size);
  if (type == 'L' || type == 'K') {
    char **slot = type == 'L' ? &x->path : &x->link;
    free(*slot);
    *slot = copy_of(text, strlen(text));
  } else {
    x->extended = true;
    take_records(x, text, (size_t)size);
  }
  free(text);
}

void tar_extras_default(struct tar_extras *x, const struct tar_extras *global) {
  if (!x->path && global->path) x->path = copy_of(global->path, strlen(global->path));
  if (!x->link && global->link) x->link = copy_of(global->link, strlen(global->link));
  if (!x->has_uid && (x->has_uid = global->has_uid)) x->uid = global->uid;
  if (!x->has_gid && (x->has_gid = global->has_gid)) x->gid = global->gid;
  if (!x->has_mtime && (x->has_mtime = global->has_mtime)) x->mtime = global->mtime;
  if (!x->has_atime && (x->has_atime = global->has_atime)) x->atime = global->atime;
}

void tar_extras_free(struct tar_extras *x) {
  free(x->path);
  free(x->link);
  for (size_t i = 0; i < x->xattr_count; i++) {
    free(x->xattrs[i].name);
    free(x->xattrs[i].value);
  }
  free(x->xattrs);
  *x = (struct tar_extras){0};
}
