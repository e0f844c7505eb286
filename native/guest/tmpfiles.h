/* Fills /run at every start of a guest. */
#ifndef CLOCHE_TMPFILES_H
#define CLOCHE_TMPFILES_H

/* Fills the fresh /run of the caller's root. Skips entries that fail: no package's file may keep a sandbox from starting. */
void run_prepare(void);

#endif
