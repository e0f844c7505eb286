// Calls of a sentry's control socket. Each opens a connection, and waits for the answer for some minutes.
#ifndef CLOCHE_KEEPER_SENTRY_H
#define CLOCHE_KEEPER_SENTRY_H

// `argument`: JSON. 0, or -1 once it was complained of.
int sentry_method(const char *socket_path, const char *name, const char *argument);
// Saves the memory into the files `images`: kernel state, page metadata, pages. `template`: pages of zeros are left out. 0 or -1.
int sentry_save(const char *socket_path, const int images[3], int template);

#endif
