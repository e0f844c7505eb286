/* `cloche-guest shift-clock MILLISECONDS`: moves the wall clock of a virtual machine that was away, fractions and all. */
#ifndef CLOCHE_CLOCK_H
#define CLOCHE_CLOCK_H

/* By how much, not to what: so the time this program takes to start does not count. Answers the exit code. */
int shift_clock(const char *milliseconds);

#endif
