#include "clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int set_clock(const char *milliseconds) {
  char *end;
  errno = 0;
  double offset_ms = strtod(milliseconds, &end);
  if (errno != 0 || *end != 0 || end == milliseconds) return 64;
  struct timespec now;
  if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 1;
  double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9 + offset_ms / 1e3;
  if (seconds < 0) return 64;
  now.tv_sec = (time_t)seconds;
  now.tv_nsec = (long)((seconds - (double)now.tv_sec) * 1e9);
  if (clock_settime(CLOCK_REALTIME, &now) == 0) return 0;
  fprintf(stderr, "clock_settime: %s\n", strerror(errno));
  return 1;
}

int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
