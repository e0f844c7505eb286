#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cursor cursor_of(const struct frame *frame) { return (struct cursor){frame->payload, frame->payload + frame->size, false}; }

static uint8_t *take(struct cursor *c, size_t size) {
  if (c->bad || (size_t)(c->end - c->at) < size) {
    c->bad = true;
    return NULL;
  }
  uint8_t *at = c->at;
  c->at += size;
  return at;
}

uint16_t take_u16(struct cursor *c) {
  uint8_t *at = take(c, 2);
  uint16_t value = 0;
  if (at) memcpy(&value, at, 2);
  return value;
}

uint32_t take_u32(struct cursor *c) {
  uint8_t *at = take(c, 4);
  uint32_t value = 0;
  if (at) memcpy(&value, at, 4);
  return value;
}

uint64_t take_u64(struct cursor *c) {
  uint8_t *at = take(c, 8);
  uint64_t value = 0;
  if (at) memcpy(&value, at, 8);
  return value;
}

char *take_string(struct cursor *c) {
  uint32_t size = take_u32(c);
  uint8_t *at = take(c, (size_t)size + 1);
  if (!at) return "";
  if (at[size] != 0 || memchr(at, 0, size)) {
    c->bad = true;
    return "";
  }
  return (char *)at;
}

uint8_t *take_bytes(struct cursor *c, size_t *size) {
  *size = take_u32(c);
  uint8_t *at = take(c, *size);
  if (!at) *size = 0;
  return at;
}

static void make_room(struct bytes *b, size_t more) {
  if (b->size + more <= b->room) return;
  size_t room = b->room ? b->room : 4096;
  while (room < b->size + more) room *= 2;
  uint8_t *data = realloc(b->data, room);
  if (!data) _exit(70);
  b->data = data;
  b->room = room;
}

void put_raw(struct bytes *b, const void *data, size_t size) {
  if (size == 0) return;
  make_room(b, size);
  memcpy(b->data + b->size, data, size);
  b->size += size;
}

void put_u8(struct bytes *b, uint8_t value) { put_raw(b, &value, 1); }
void put_u32(struct bytes *b, uint32_t value) { put_raw(b, &value, 4); }
void put_u64(struct bytes *b, uint64_t value) { put_raw(b, &value, 8); }

void put_string(struct bytes *b, const char *text) {
  size_t size = strlen(text);
  put_u32(b, (uint32_t)size);
  put_raw(b, text, size);
}

void frame_header(uint8_t out[FRAME_HEADER], uint8_t type, uint8_t flags, uint32_t id, size_t size) {
  uint32_t length = (uint32_t)(size + FRAME_HEADER - 4);
  memcpy(out, &length, 4);
  out[4] = type;
  out[5] = flags;
  out[6] = out[7] = 0;
  memcpy(out + 8, &id, 4);
}

size_t frame_open(struct bytes *b, uint8_t type, uint8_t flags, uint32_t id) {
  size_t start = b->size;
  uint8_t header[FRAME_HEADER];
  frame_header(header, type, flags, id, 0);
  put_raw(b, header, FRAME_HEADER);
  return start;
}

void frame_close(struct bytes *b, size_t start) {
  uint32_t length = (uint32_t)(b->size - start - 4);
  memcpy(b->data + start, &length, 4);
}

uint8_t *feed_room(struct feed *feed, size_t *room) {
  if (feed->start == feed->size) feed->start = feed->size = 0;
  size_t want = 65536;
  if (feed->size - feed->start >= 4) {
    uint32_t length;
    memcpy(&length, feed->data + feed->start, 4);
    if (length <= FRAME_MAX && length + 4 > want) want = length + 4;
  }
  if (feed->room - feed->size < want) {
    if (feed->size > feed->start) memmove(feed->data, feed->data + feed->start, feed->size - feed->start);
    feed->size -= feed->start;
    feed->start = 0;
    if (feed->room - feed->size < want) {
      feed->data = realloc(feed->data, feed->size + want);
      if (!feed->data) _exit(70);
      feed->room = feed->size + want;
    }
  }
  *room = feed->room - feed->size;
  return feed->data + feed->size;
}

int take_frame(struct feed *feed, struct frame *frame) {
  size_t have = feed->size - feed->start;
  if (have < 4) return 0;
  uint8_t *at = feed->data + feed->start;
  uint32_t length;
  memcpy(&length, at, 4);
  if (length < FRAME_HEADER - 4 || length > FRAME_MAX - 4) return -1;
  if (have < (size_t)length + 4) return 0;
  frame->type = at[4];
  frame->flags = at[5];
  memcpy(&frame->id, at + 8, 4);
  frame->payload = at + FRAME_HEADER;
  frame->size = length + 4 - FRAME_HEADER;
  feed->start += (size_t)length + 4;
  return 1;
}

bool write_all(int fd, const void *data, size_t size) {
  const uint8_t *at = data;
  while (size > 0) {
    ssize_t n = write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
      continue;
    }
    if (n <= 0) return false;
    at += n;
    size -= (size_t)n;
  }
  return true;
}
