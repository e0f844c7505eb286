/*
 * Makes the agent's listening socket before Node starts, because Node sets SO_REUSEADDR on its sockets. In gVisor a user's socket with
 * that option could then be bound to the same port at a narrower address or device, and would get all new connections. Without the
 * option no second socket can be bound to the port, whatever its address and options.
 */
#include "listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_FD 3
#define BACKLOG 511

static int fail(const char *step) {
  fprintf(stderr, "cloche-guest listen: %s: %s\n", step, strerror(errno));
  return 71;
}

int listen_and_run(int argc, char **argv) {
  char *end;
  long port = strtol(argv[2], &end, 10);
  if (argc < 5 || *end || port < 1 || port > 65535 || strcmp(argv[3], "--") != 0) {
    fprintf(stderr, "usage: cloche-guest listen PORT -- PROGRAM [ARGUMENT]...\n");
    return 64;
  }
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return fail("socket");
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY)};
  if (bind(fd, (struct sockaddr *)&any, sizeof any) != 0) return fail("bind");
  if (listen(fd, BACKLOG) != 0) return fail("listen");
  if (fd != LISTEN_FD) {
    if (dup2(fd, LISTEN_FD) < 0) return fail("dup2");
    close(fd);
  }
  execv(argv[4], argv + 4);
  return fail(argv[4]);
}
