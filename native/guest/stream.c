#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "exec.h"

#define DRAIN_TO_END UINT32_MAX
#define INPUT_CREDIT_STEP 65536u

static bool draining(const struct output *out) {
  enum exec_phase phase = out->watch.exec->phase;
  return phase == PHASE_DRAINING || phase == PHASE_LAST_DRAIN;
}

void output_rearm(struct init *in, struct output *out) {
  if (out->credit > 0 && !in->paused && !out->drained) watch_arm(in, &out->watch, POLLIN);
  else watch_disarm(in, &out->watch);
}

/* Reads once and sends it. Returns false when there is nothing to read now. */
static bool pump(struct init *in, struct output *out) {
  static uint8_t buffer[FRAME_HEADER + CHUNK_MAX];
  size_t want = out->credit < CHUNK_MAX ? out->credit : CHUNK_MAX;
  if (draining(out) && out->drain < want) want = out->drain;
  if (want == 0) return false;
  ssize_t n = read(out->watch.fd, buffer + FRAME_HEADER, want);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) { /* end of file; EIO on a pty */
    watch_close(in, &out->watch);
    return false;
  }
  out->credit -= (uint32_t)n;
  if (draining(out) && out->drain != DRAIN_TO_END) {
    out->drain -= (uint32_t)n;
    if (out->drain == 0) out->drained = true;
  }
  send_in_place(in, out->frame_type, out->watch.exec->id, buffer, (size_t)n);
  return true;
}

void output_readable(struct init *in, struct output *out) {
  pump(in, out);
  output_rearm(in, out);
  exec_advance(in, out->watch.exec);
}

void output_credit(struct init *in, struct output *out, uint32_t bytes) {
  out->credit = out->credit + bytes < out->credit ? UINT32_MAX : out->credit + bytes;
  output_rearm(in, out);
}

/*
 * When the program ends, its output is in the pipe. Exactly that much is sent before EXIT: background children may hold the pipe,
 * but their later output does not delay EXIT.
 */
void output_start_drain(struct init *in, struct output *out) {
  if (out->watch.fd < 0) return;
  int waiting = 0;
  if (out->watch.exec->flags & SPAWN_PTY) {
    out->drain = DRAIN_TO_END;
  } else {
    ioctl(out->watch.fd, FIONREAD, &waiting);
    out->drain = (uint32_t)waiting;
  }
  out->drained = out->drain == 0;
  while (!out->drained && out->watch.fd >= 0 && !in->paused && pump(in, out)) continue;
  output_rearm(in, out);
}

bool output_drain_on(struct init *in, struct output *out, bool more) {
  bool came = false;
  while (out->watch.fd >= 0 && out->credit > 0 && !in->paused && pump(in, out)) {
    came = true;
    if (!more) break; /* one last read: a program that never stops writing is not waited for */
  }
  if (out->watch.fd < 0) return false;
  output_rearm(in, out);
  return out->credit == 0 || in->paused || (came && more);
}

void output_release(struct init *in, struct output *out) {
  if (out->watch.fd < 0) return;
  uint8_t byte;
  watch_disarm(in, &out->watch);
  ssize_t n = read(out->watch.fd, &byte, 1);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    watch_close(in, &out->watch);
    return;
  }
  struct watch *sink = calloc(1, sizeof *sink);
  if (!sink) _exit(70);
  *sink = (struct watch){.kind = WATCH_SINK, .fd = out->watch.fd};
  out->watch.fd = -1;
  watch_arm(in, sink, POLLIN);
}

void sink_readable(struct init *in, struct watch *watch) {
  static uint8_t buffer[CHUNK_MAX];
  ssize_t n = read(watch->fd, buffer, sizeof buffer);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
  watch_close(in, watch);
  free_later(in, watch);
}

static void give_input_credit(struct init *in, struct exec *e, size_t bytes) {
  e->input_consumed += (uint32_t)bytes;
  if (e->input_consumed < INPUT_CREDIT_STEP) return;
  send_frame(in, F_STDIN_CREDIT, e->id, &e->input_consumed, sizeof e->input_consumed);
  e->input_consumed = 0;
}

/* Writes as much as the program takes; the rest waits for POLLOUT. Input for a closed pipe is dropped. */
void input_writable(struct init *in, struct exec *e) {
  size_t waiting = e->pending_input.size - e->pending_start;
  while (waiting > 0) {
    ssize_t n = e->input.fd < 0 ? (ssize_t)waiting : write(e->input.fd, e->pending_input.data + e->pending_start, waiting);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      watch_arm(in, &e->input, POLLOUT);
      return;
    }
    if (n < 0) {
      watch_close(in, &e->input);
      continue;
    }
    e->pending_start += (size_t)n;
    waiting -= (size_t)n;
    give_input_credit(in, e, (size_t)n);
  }
  e->pending_input.size = e->pending_start = 0;
  watch_disarm(in, &e->input);
  if (e->input_ending && !(e->flags & SPAWN_PTY)) watch_close(in, &e->input);
}

void input_feed(struct init *in, struct exec *e, const uint8_t *data, size_t size) {
  if (e->pending_input.size - e->pending_start + size > STDIN_WINDOW) _exit(71); /* the agent broke the protocol */
  if (e->pending_start > 0) {
    memmove(e->pending_input.data, e->pending_input.data + e->pending_start, e->pending_input.size - e->pending_start);
    e->pending_input.size -= e->pending_start;
    e->pending_start = 0;
  }
  put_raw(&e->pending_input, data, size);
  input_writable(in, e);
}

void input_end(struct init *in, struct exec *e) {
  e->input_ending = true;
  if (e->pending_input.size == e->pending_start) input_writable(in, e);
}
