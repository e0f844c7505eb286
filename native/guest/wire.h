/* Frames between the agent and the guest; PROTOCOL.md is the description, wire.ts the other side. */
#ifndef CLOCHE_WIRE_H
#define CLOCHE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 3
#define FRAME_HEADER 12
#define FRAME_MAX (4u << 20)  /* of a whole frame, header included */
#define CHUNK_MAX 65536u      /* output bytes of one frame */
#define STDIN_WINDOW 262144u  /* bytes the agent may send before the first credit */
#define READ_MAX 262144u      /* bytes of one file read */

enum frame_type {
  /* agent -> init */
  F_SPAWN = 1,
  F_STDIN = 2,
  F_STDIN_END = 3,
  F_CREDIT = 4,
  F_SIGNAL = 5,
  F_KILL = 6,
  F_RESIZE = 7,
  F_GUEST = 8,
  F_RENEW = 9,
  F_PID = 10,
  F_CONTAINERS = 11,
  /* agent -> files */
  F_LSTAT = 32,
  F_OPEN = 33,
  F_READ = 34,
  F_CLOSE = 35,
  F_WRITE = 36,
  F_REMOVE = 37,
  F_LIST = 38,
  F_MKDIR = 39,
  F_MOVE = 40,
  F_SYNC = 41,
  F_HOSTNAME = 42,
  F_TOGETHER = 43,
  F_AS = 44,
  F_UPLOAD = 45,
  F_UPLOAD_DATA = 46,
  F_UPLOAD_END = 47,
  F_COPY = 48,
  F_CHMOD = 49,
  F_CHOWN = 50,
  F_WATCH = 51,
  F_WATCH_MORE = 52,
  F_UNWATCH = 53,
  F_BOOT_ID = 54,
  /* init -> agent */
  F_HELLO = 64,
  F_STARTED = 65,
  F_STDOUT = 66,
  F_STDERR = 67,
  F_STDIN_CREDIT = 68,
  F_EXIT = 69,
  F_ENDED = 70,
  F_ERROR = 71,
  F_FATAL = 72,
  F_RENEWED = 73,
  /* files -> agent */
  F_DONE = 96,
  F_ENTRIES = 97,
  F_DATA = 98,
  F_OPENED = 99,
  F_FAILED = 100,
  F_OUT_OF_MEMORY = 101,
  F_WATCHING = 102,
  F_EVENTS = 103,
};

enum spawn_flags { SPAWN_STDIN = 1, SPAWN_PTY = 2, SPAWN_HOLD = 4, SPAWN_SELF = 8, SPAWN_QUIET = 16, SPAWN_MERGE = 32 };
enum spawn_stage { STAGE_NONE, STAGE_REQUEST, STAGE_USER, STAGE_CWD, STAGE_EXEC, STAGE_FORK, STAGE_PTY };
enum signal_scope { SCOPE_PROGRAM = 0, SCOPE_TREE = 1, SCOPE_GROUP = 2 };

struct frame {
  uint8_t type;
  uint8_t flags;
  uint32_t id;
  uint8_t *payload;
  size_t size;
};

/* Reads a payload; `bad` is set by the first value that does not fit, and everything after it reads as zero. */
struct cursor {
  uint8_t *at;
  uint8_t *end;
  bool bad;
};
struct cursor cursor_of(const struct frame *frame);
uint16_t take_u16(struct cursor *c);
uint32_t take_u32(struct cursor *c);
uint64_t take_u64(struct cursor *c);
/* A string: u32 size, bytes, one NUL that is not counted. Points into the payload; an inner NUL is bad. */
char *take_string(struct cursor *c);
/* u32 size and bytes. */
uint8_t *take_bytes(struct cursor *c, size_t *size);

/* A growing byte string. Running out of memory ends the process, because init must not go on half broken. */
struct bytes {
  uint8_t *data;
  size_t size;
  size_t room;
};
void put_raw(struct bytes *b, const void *data, size_t size);
void put_u8(struct bytes *b, uint8_t value);
void put_u32(struct bytes *b, uint32_t value);
void put_u64(struct bytes *b, uint64_t value);
void put_string(struct bytes *b, const char *text);
/* Starts a frame at the end of `b` and returns where, for frame_close, which writes the length. */
size_t frame_open(struct bytes *b, uint8_t type, uint8_t flags, uint32_t id);
void frame_close(struct bytes *b, size_t start);
/* Writes a header in front of `size` payload bytes that follow it. */
void frame_header(uint8_t out[FRAME_HEADER], uint8_t type, uint8_t flags, uint32_t id, size_t size);

/* Collects frames from a stream. feed_room gives where to read to; take_frame returns 1 for a frame, 0 for none yet, -1 for a broken stream. */
struct feed {
  uint8_t *data;
  size_t start, size, room;
};
uint8_t *feed_room(struct feed *feed, size_t *room);
int take_frame(struct feed *feed, struct frame *frame);

bool write_all(int fd, const void *data, size_t size);

#endif
