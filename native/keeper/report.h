// What the keeper says of a failure, on stderr, and how it measures.
#ifndef CLOCHE_KEEPER_REPORT_H
#define CLOCHE_KEEPER_REPORT_H

// With the words of errno, where it is not 0; errno stays.
void complain(const char *format, ...);
// Of the monotonic clock.
long now_us(void);

#endif
