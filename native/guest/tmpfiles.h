/* What /run holds at every start of a guest. */
#ifndef CLOCHE_TMPFILES_H
#define CLOCHE_TMPFILES_H

/* Fills the fresh /run of the calling process's root. What cannot be read or made is left out: a package's odd file must not keep a sandbox from starting. */
void run_prepare(void);

#endif
