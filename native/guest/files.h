/*
 * The file server: answers the agent's file requests in the guest's root and mount namespace, so that every symlink
 * resolves in the user's tree and none can lead out of it. A pool of threads; requests are independent of one another.
 */
#ifndef CLOCHE_FILES_H
#define CLOCHE_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "account.h"
#include "file-requests.h"
#include "guest.h"
#include "memory.h"
#include "wire.h"

/* Tells the agent at `fd` that its requests will be served. */
void files_hello(int fd);
/* Serves until the agent closes its end or `init` ends; then ends with all processes of the guest. Starts `guard` unless NULL. */
_Noreturn void files_serve(pid_t init, const struct process_limit *limit, const struct memory_guard *guard);

/* Sends complete frames to the agent and empties `frame`. */
void files_send(struct bytes *frame);

/* The extended attributes sent with an entry: none, its own, or those of its target. */
enum entry_attributes { NO_ATTRIBUTES, OF_ENTRY, OF_TARGET };

/* entry.c: the wire form of an entry. */
void put_entry(struct bytes *b, const char *path, const struct stat *st, enum entry_attributes attributes, struct account_names *names);

/* The operations; 0 or an errno. */
int make_directories(const char *path);
/* Follows final symlinks (dangling ones too) to the path a write through `path` would create. */
int follow_links(const char *path, char out[4096]);
int remove_entry(const char *path, bool recursive);
int move_entry(const char *source, const char *destination, enum subject *subject);
/* Follows a final link of the source and replaces one of the destination; EISDIR for a directory unless `recursive`. */
int copy_path(const char *source, const char *destination, bool recursive, enum subject *subject);
/* permissions.c. Follows final links. Links below a directory are left alone (chmod) or changed themselves (chown). */
int change_mode(const char *path, mode_t mode, bool recursive);
/* -1: unchanged. */
int change_owner(const char *path, uid_t uid, gid_t gid, bool recursive);
/* Finds ids by name or number; empty: -1. False if one is unknown; `subject` tells which. */
bool owner_find(const char *user, const char *group, uid_t *uid, gid_t *gid, enum subject *subject);
/* Streams F_ENTRIES frames for the first `limit` entries by path down to `depth`. */
int list_entries(uint32_t id, const char *path, uint32_t depth, uint32_t limit, enum entry_attributes attributes, bool *truncated);

#endif
