/* Messages of failures on stderr, and the clock of measurements. */
#ifndef CLOCHE_KEEPER_REPORT_H
#define CLOCHE_KEEPER_REPORT_H

/* Adds the text of errno unless that is 0. Keeps errno. */
void complain(const char *format, ...);
/* Monotonic clock, microseconds. */
long now_us(void);

#endif
