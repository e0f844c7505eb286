/*
 * Makes the epoll instance of Node's event loop anew, under the same descriptor.
 *
 * gVisor restores epoll instances broken (its issue 13920): the loop then spins for ever, or never hears of a socket
 * again. A new instance that is told of everything libuv watches is whole; it reports at once whatever is ready.
 */
#include <errno.h>
#include <fcntl.h>
#include <node_api.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <uv.h>

static bool watch_all(const uv_loop_t *loop, int epoll_fd) {
  for (unsigned i = 0; i < loop->nwatchers; i++) {
    const uv__io_t *watcher = loop->watchers[i];
    /* Without `events` libuv has not told its instance yet, and will tell the new one. */
    if (watcher == NULL || watcher->events == 0) continue;
    struct epoll_event event = {.events = watcher->pevents, .data.fd = watcher->fd};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, watcher->fd, &event) < 0 && errno != EBADF) return false;
  }
  return true;
}

static bool renew_epoll(const uv_loop_t *loop) {
  int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return false;
  bool renewed = watch_all(loop, epoll_fd) && dup3(epoll_fd, loop->backend_fd, O_CLOEXEC) >= 0;
  int error = errno;
  close(epoll_fd);
  errno = error;
  return renewed;
}

static napi_value renew(napi_env env, napi_callback_info info) {
  (void)info;
  uv_loop_t *loop;
  if (napi_get_uv_event_loop(env, &loop) != napi_ok) napi_throw_error(env, NULL, "no event loop");
  else if (!renew_epoll(loop)) napi_throw_error(env, NULL, strerror(errno));
  return NULL;
}

NAPI_MODULE_INIT() {
  /* The loop's fields are libuv's own and may move between its releases. */
  if (uv_version() != UV_VERSION_HEX) {
    napi_throw_error(env, NULL, "compiled for another libuv than this one");
    return exports;
  }
  napi_value function;
  if (napi_create_function(env, "renew", NAPI_AUTO_LENGTH, renew, NULL, &function) == napi_ok)
    napi_set_named_property(env, exports, "renew", function);
  return exports;
}
