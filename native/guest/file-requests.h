/* The requests of the file server that last longer than one frame: writes that stream (upload.c) and watches (watch.c). */
#ifndef CLOCHE_FILE_REQUESTS_H
#define CLOCHE_FILE_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "attributes.h"

/* What of a request an errno is about: EINVAL of user, owner and group says that there is no such one. */
enum subject {
  SUBJECT_PATH = 0,
  SUBJECT_DESTINATION = 1,
  SUBJECT_USER = 2,
  SUBJECT_OWNER = 3,
  SUBJECT_GROUP = 4,
  SUBJECT_ATTRIBUTES = 5,
};

/*
 * A file that is being written: filled under a temporary name, given its owner and its mode, and put in place in one step. Until
 * then nothing of it can be seen, and one that is given up leaves nothing.
 *
 *     upload_begin ──▶ open ──upload_write, in any order──▶ upload_commit ──▶ the file is there
 *                        └────────────────────────────────▶ upload_abandon ──▶ nothing is
 *
 * Whoever the thread acts as at the beginning (identity.h) is who the whole of it is done as.
 */

/* Open at once, of all requests together; more are EMFILE. */
#define UPLOADS_MAX 256

/* What the request says of the file. */
struct upload_wish {
  int mode;    /* -1: that of the file in its place, else 0644 */
  bool append; /* to the end of the file that is there, and not in its place */
  const char *owner, *group; /* by name or number; empty: the old one's, else whose the request is. They need no rights of his. */
  struct attributes attributes; /* all that it shall have; taken over by upload_begin. Not of a file that is appended to */
};

/* All answer 0 or an errno. `handle` is for the others, `fd` is open until it is gone; `subject` says what an errno of upload_begin is about. */
int upload_begin(const char *path, const struct upload_wish *wish, uint32_t *handle, int *fd, enum subject *subject);
int upload_write(uint32_t handle, const uint8_t *data, size_t size, uint64_t offset);
/* The handle is free afterwards, whatever is answered. `path`: as upload_begin had it, for the caller to free. */
int upload_commit(uint32_t handle, char **path, struct stat *st);
void upload_abandon(uint32_t handle);
/* All of these in one, for what fits a frame; its handle is none of the table's. */
int upload_whole(const char *path, int mode, const uint8_t *data, size_t size, struct stat *st);

/*
 * Telling the agent what changes below a path. One thread reads the kernel's events (inotify) of all watches and turns them into
 * paths; a watch whose reader is slow keeps a bounded queue, and says so when it had to lose some.
 *
 *     WATCH ──▶ WATCHING ──EVENTS──▶ waiting for WATCH_MORE ──▶ EVENTS … ──UNWATCH, or its root is gone──▶ DONE
 */

/* At once; more are EMFILE. */
#define WATCHES_MAX 64
/* Directories of one watch, at most: EMFILE at its beginning, told as events lost later. */
#define WATCH_DIRECTORIES_MAX 65536
/* Of events that wait for their reader. */
#define WATCH_QUEUE_MAX (1u << 20)

/* What of an event, and of what: as the agent reads them. */
enum watch_event { EVENT_CREATED = 1, EVENT_MODIFIED, EVENT_DELETED, EVENT_RENAMED, EVENT_ATTRIBUTES, EVENT_OVERFLOW };

/* Sends WATCHING and, from then on, events by that id. 0 or an errno, and then there is no watch. */
int watch_begin(uint32_t id, const char *path, bool recursive);
/* The agent has passed on what it got. */
void watch_more(uint32_t id);
void watch_end(uint32_t id);

#endif
