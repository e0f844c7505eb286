#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tar.h"

#define IN_ROOM 65536

static uint8_t in[IN_ROOM];
static size_t in_start, in_size;

_Noreturn void tar_invalid(const char *what) {
  dprintf(2, "invalid %s\n", what);
  _exit(2);
}

_Noreturn void tar_failed(int error, const char *path) {
  dprintf(2, "failed %d %.2000s\n", error, path);
  _exit(1);
}

size_t tar_next(uint8_t **at, size_t want) {
  if (in_start == in_size) {
    ssize_t n;
    do n = read(0, in, IN_ROOM);
    while (n < 0 && errno == EINTR);
    if (n < 0) tar_failed(errno, "");
    in_start = 0;
    in_size = (size_t)n;
  }
  size_t have = in_size - in_start;
  if (have > want) have = want;
  *at = in + in_start;
  in_start += have;
  return have;
}

size_t tar_read(void *to, size_t size) {
  size_t done = 0;
  while (done < size) {
    uint8_t *at;
    size_t n = tar_next(&at, size - done);
    if (n == 0) break;
    memcpy((uint8_t *)to + done, at, n);
    done += n;
  }
  return done;
}

void tar_skip(uint64_t size) {
  while (size > 0) {
    uint8_t *at;
    size_t n = tar_next(&at, size < IN_ROOM ? (size_t)size : IN_ROOM);
    if (n == 0) tar_invalid("it ends in the middle of an entry");
    size -= n;
  }
}

uint64_t tar_padded(uint64_t size) { return (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK; }

/* Two's complement; the first bit is only a mark. GNU uses it for numbers too large for octal. */
static bool base256(const uint8_t *field, size_t room, int64_t *value) {
  bool negative = field[0] & 0x40;
  uint64_t bits = negative ? UINT64_MAX : 0;
  for (size_t i = 0; i < room; i++) {
    uint8_t byte = field[i];
    if (i == 0) byte = negative ? byte | 0x80 : byte & 0x7f;
    /* Only sign bits may be shifted out. */
    if ((bits >> 55) != (negative ? 0x1ff : 0)) return false;
    bits = bits << 8 | byte;
  }
  *value = (int64_t)bits;
  return true;
}

bool tar_number(const char *field, size_t room, int64_t *value) {
  *value = 0;
  if (field[0] & 0x80) return base256((const uint8_t *)field, room, value);
  size_t i = 0;
  while (i < room && (field[i] == ' ' || field[i] == 0)) i++;
  /* 12 octal digits are 36 bits. */
  for (; i < room && field[i] >= '0' && field[i] <= '7'; i++) *value = *value << 3 | (field[i] - '0');
  return i == room || field[i] == ' ' || field[i] == 0;
}

bool tar_checksum_right(const struct tar_header *h) {
  int64_t sum = 0, signed_sum = 0, value;
  for (size_t i = 0; i < sizeof *h; i++) {
    bool inside = i >= offsetof(struct tar_header, checksum) && i < offsetof(struct tar_header, type);
    sum += inside ? ' ' : ((const uint8_t *)h)[i];
    signed_sum += inside ? ' ' : ((const signed char *)h)[i]; /* as some old programs counted */
  }
  return tar_number(h->checksum, sizeof h->checksum, &value) && (value == sum || value == signed_sum);
}
