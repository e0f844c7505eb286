/*
 * Keeps a virtual machine's wall clock right without the host: the hardware clock follows the host's through every pause, snapshot
 * and restore, while the kernel's clock stops with the machine. The hardware clock has whole seconds, so an error below two
 * seconds remains; the host's Assign sets the clock to the millisecond.
 *
 * Runs in the guest for ever. Exits with 1 if there is no hardware clock.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/rtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { CHECK_SECONDS = 1, TOLERATED_SECONDS = 1 };

int main(void) {
  int rtc = open("/dev/rtc0", O_RDONLY | O_CLOEXEC);
  if (rtc < 0) {
    perror("vm-clock: /dev/rtc0");
    return 1;
  }
  for (;;) {
    struct rtc_time fields;
    struct timespec now, pause = {CHECK_SECONDS, 0};
    if (ioctl(rtc, RTC_RD_TIME, &fields) == 0) {
      struct tm utc = {.tm_sec = fields.tm_sec,
                       .tm_min = fields.tm_min,
                       .tm_hour = fields.tm_hour,
                       .tm_mday = fields.tm_mday,
                       .tm_mon = fields.tm_mon,
                       .tm_year = fields.tm_year};
      time_t hardware = timegm(&utc);
      clock_gettime(CLOCK_REALTIME, &now);
      if (labs((long)(hardware - now.tv_sec)) > TOLERATED_SECONDS) {
        /* The middle of the second that the hardware clock shows. */
        struct timespec right = {hardware, 500 * 1000 * 1000};
        if (clock_settime(CLOCK_REALTIME, &right) != 0) perror("vm-clock: settime");
      }
    }
    /* Sleep by the monotonic clock, which a change of the wall clock does not affect. */
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
  }
}
