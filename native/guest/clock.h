/* The monotonic clock, and `cloche-guest set-clock MILLISECONDS`: the wall clock of a virtual machine that was away, fractions and all. */
#ifndef CLOCHE_CLOCK_H
#define CLOCHE_CLOCK_H

#include <stdint.h>

int64_t now_ms(void);

/*
 * By how much the wall clock is to be ahead of the monotonic one: so neither the time this program takes to start counts, nor
 * somebody else who sets the clock meanwhile. Answers the exit code.
 */
int set_clock(const char *milliseconds);

#endif
