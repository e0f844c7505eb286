/* The requests of the file server that last longer than one frame: writes that stream (upload.c) and watches (watch.c). */
#ifndef CLOCHE_FILE_REQUESTS_H
#define CLOCHE_FILE_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "attributes.h"

/* The part of a request that an errno is about. EINVAL of user, owner or group: that user or group is unknown. */
enum subject {
  SUBJECT_PATH = 0,
  SUBJECT_DESTINATION = 1,
  SUBJECT_USER = 2,
  SUBJECT_OWNER = 3,
  SUBJECT_GROUP = 4,
  SUBJECT_ATTRIBUTES = 5,
};

/*
 * A file being written: filled under a temporary name, given owner and mode, and put in place in one step. Until then it is
 * invisible, and an abandoned upload leaves nothing.
 *
 *     upload_begin ──▶ open ──upload_write, in any order──▶ upload_commit ──▶ the file is there
 *                        └────────────────────────────────▶ upload_abandon ──▶ there is no file
 *
 * The whole upload uses the identity (identity.h) of the thread that began it.
 */

/* Uploads open at once; more fail with EMFILE. */
#define UPLOADS_MAX 256

/* The request's wishes for the file. */
struct upload_wish {
  int mode;    /* -1: the mode of the file that it replaces, or 0644 */
  bool append; /* append to the existing file instead of replacing it */
  const char *owner, *group; /* name or number; empty: the old file's, or the request's identity. Set with root's rights. */
  struct attributes attributes; /* the complete set of the new file, owned by upload_begin from then on. Not used for append */
};

/* All return 0 or an errno. `handle`: for the other calls; `fd`: open as long as the handle. `subject`: the part that an errno is about. */
int upload_begin(const char *path, const struct upload_wish *wish, uint32_t *handle, int *fd, enum subject *subject);
int upload_write(uint32_t handle, const uint8_t *data, size_t size, uint64_t offset);
/* Frees the handle, also on failure. `path`: as given to upload_begin; the caller frees it. */
int upload_commit(uint32_t handle, char **path, struct stat *st);
void upload_abandon(uint32_t handle);
/* A whole upload in one call, for content that fits a frame; it takes no handle of the table. */
int upload_whole(const char *path, int mode, const uint8_t *data, size_t size, struct stat *st);

/*
 * Tells the agent of changes below a path. One thread reads the kernel's events (inotify) of all watches and turns them into paths.
 * A watch with a slow reader keeps a bounded queue, and reports when events were lost.
 *
 *     WATCH ──▶ WATCHING ──EVENTS──▶ waiting for WATCH_MORE ──▶ EVENTS … ──UNWATCH, or its root is gone──▶ DONE
 */

/* Watches at once; more fail with EMFILE. */
#define WATCHES_MAX 64
/* Most directories of one watch. More fail with EMFILE at the beginning, and are reported as lost events later. */
#define WATCH_DIRECTORIES_MAX 65536
/* Most bytes of events that wait for their reader. */
#define WATCH_QUEUE_MAX (1u << 20)

/* Kinds of events, as on the wire. */
enum watch_event { EVENT_CREATED = 1, EVENT_MODIFIED, EVENT_DELETED, EVENT_RENAMED, EVENT_ATTRIBUTES, EVENT_OVERFLOW };

/* Sends WATCHING and from then on events with that id. 0, or an errno if there is no watch. */
int watch_begin(uint32_t id, const char *path, bool recursive);
/* The agent has passed on the last events: sends the next. */
void watch_more(uint32_t id);
void watch_end(uint32_t id);

#endif
