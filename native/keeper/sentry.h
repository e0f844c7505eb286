/* Calls to a sentry's control socket. Each opens a connection and waits up to five minutes for the answer. */
#ifndef CLOCHE_KEEPER_SENTRY_H
#define CLOCHE_KEEPER_SENTRY_H

/* `argument`: JSON. 0; -1 after a failure, which is reported on stderr. */
int sentry_method(const char *socket_path, const char *name, const char *argument);
/* Saves the memory into the files `images`: kernel state, page metadata, pages. `template`: without pages of zeros. 0 or -1. */
int sentry_save(const char *socket_path, const int images[3], int template);

#endif
