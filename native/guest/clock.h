/* The monotonic clock, and `cloche-guest set-clock MILLISECONDS`, which corrects the wall clock of a restored virtual machine. */
#ifndef CLOCHE_CLOCK_H
#define CLOCHE_CLOCK_H

#include <stdint.h>

int64_t now_ms(void);

/*
 * Sets the wall clock to the monotonic clock plus `milliseconds` (fractions allowed). A difference, so that neither the start time of
 * this program nor another change of the clock matters. Returns the exit code.
 */
int set_clock(const char *milliseconds);

#endif
