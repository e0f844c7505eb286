/*
 * The file server: answers the agent's file requests in the guest's root and mount namespace, so that every symlink
 * resolves in the user's tree and none can lead out of it. A pool of threads; requests are independent of one another.
 */
#ifndef CLOCHE_FILES_H
#define CLOCHE_FILES_H

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "account.h"
#include "guest.h"
#include "memory.h"
#include "wire.h"

/* Serves on `fd` until the agent closes it or `init` ends; then neither of them nor any process of the guest is left. `guard` is started where it is not NULL. */
_Noreturn void files_serve(int fd, pid_t init, const struct process_limit *limit, const struct memory_guard *guard);

/* Which of the two paths of a request an errno is about. */
enum subject { SUBJECT_PATH = 0, SUBJECT_DESTINATION = 1 };

/* An open frame to the agent, see files.c. */
void files_send(struct bytes *frame);

/* entry.c: the wire form of an entry. `path` is what the agent asked for; `at` and `name` are where to read the link. */
void put_entry(struct bytes *b, const char *path, const struct stat *st, int at, const char *name, struct account_names *names);

/* The operations; 0 or an errno. */
int make_directories(const char *path);
/* Follows final symlinks (dangling ones too) to the path a write through `path` would create. */
int follow_links(const char *path, char out[4096]);
int write_file(const char *path, int mode, const uint8_t *data, size_t size, struct stat *st);
int remove_entry(const char *path, bool recursive);
int move_entry(const char *source, const char *destination, enum subject *subject);
/* Streams F_ENTRIES frames for the first `limit` entries by path down to `depth`. */
int list_entries(uint32_t id, const char *path, uint32_t depth, uint32_t limit, bool *truncated);

#endif
