#define _GNU_SOURCE
#include "sentry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "report.h"

#define REPLY_MAX 65536
#define CALL_TIMEOUT_S 300

/* Sends one request and reads one reply, {"success":true,"err":"","result":…}, into `reply`. */
static int call(const char *socket_path, const char *request, const int *fds, int fd_count, char *reply) {
  int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(socket_path) >= sizeof address.sun_path) return errno = ENAMETOOLONG, -1;
  strcpy(address.sun_path, socket_path);
  struct timeval timeout = {.tv_sec = CALL_TIMEOUT_S};
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address)) {
    complain("control socket");
    return close(connection), -1;
  }
  struct iovec data = {.iov_base = (void *)request, .iov_len = strlen(request)};
  char control[CMSG_SPACE(sizeof(int) * 4)];
  memset(control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)fd_count);
  }
  if (sendmsg(connection, &message, MSG_NOSIGNAL) != (ssize_t)data.iov_len) {
    complain("control socket, send");
    return close(connection), -1;
  }
  size_t length = 0;
  int depth = 0, quoted = 0, escaped = 0, complete = 0;
  while (!complete && length < REPLY_MAX - 1) {
    ssize_t n = recv(connection, reply + length, REPLY_MAX - 1 - length, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = 0;
      complain("control socket closed before the answer");
      return close(connection), -1;
    }
    for (ssize_t i = 0; i < n; i++) {
      char c = reply[length + (size_t)i];
      if (escaped) escaped = 0;
      else if (quoted && c == '\\') escaped = 1;
      else if (c == '"') quoted = !quoted;
      else if (!quoted && c == '{') depth++;
      else if (!quoted && c == '}' && --depth == 0) complete = 1;
    }
    length += (size_t)n;
  }
  reply[length] = 0;
  close(connection);
  if (strstr(reply, "\"success\":true")) return 0;
  errno = 0;
  complain("%s", reply);
  return -1;
}

int sentry_method(const char *socket_path, const char *name, const char *argument) {
  static char request[REPLY_MAX], reply[REPLY_MAX];
  snprintf(request, sizeof request, "{\"method\":\"%s\",\"arg\":%s}", name, argument);
  return call(socket_path, request, NULL, 0, reply);
}

/*
 * The request of `runsc checkpoint`. Older sentries know only the first of the two names for pages of zeros, newer ones only
 * the second; both ignore unknown names.
 */
#define CHECKPOINT_REQUEST(without_zeros)                                                                      \
  "{\"method\":\"containerManager.Checkpoint\",\"arg\":{\"key\":null,\"metadata\":{\"compression\":\"none\"}," \
  "\"MemoryFileSaveOpts\":{\"ExcludeCommittedZeroPages\":" without_zeros                                       \
  "},"                                                                                                         \
  "\"app_mf_exclude_committed_zero_pages\":" without_zeros ",\"have_pages_file\":true,\"Resume\":true}}"
static const char *const checkpoint_request = CHECKPOINT_REQUEST("false");
static const char *const template_request = CHECKPOINT_REQUEST("true");

int sentry_save(const char *socket_path, const int images[3], int template) {
  static char reply[REPLY_MAX];
  return call(socket_path, template ? template_request : checkpoint_request, images, 3, reply);
}
