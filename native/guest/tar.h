/* The archive programs: POSIX tar on stdin and stdout, run inside the guest as `cloche-guest tar-create|tar-extract DIR`. */
#ifndef CLOCHE_TAR_H
#define CLOCHE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define TAR_BLOCK 512
/* Start of the key of a pax record with an extended attribute. */
#define PAX_XATTR "SCHILY.xattr."

struct tar_header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
  char magic[8], uname[32], gname[32], major[8], minor[8], prefix[155], padding[12];
};

/*
 * Both report on stderr and by their exit status. The last line is with status 0: `done <entries> <skipped>`; 1: `failed <errno> <entry>`;
 * 2: `invalid <fault of the archive>`. Before it come a few lines `skipped <errno> <entry>`; a line break in a name becomes `?`.
 */
int tar_create(const char *directory);
int tar_extract(const char *directory);

/* tar-input.c: the archive on stdin. A failed read ends the process. */
_Noreturn void tar_invalid(const char *what);
_Noreturn void tar_failed(int error, const char *path);
/* Up to `want` bytes in one piece; 0 at the end. */
size_t tar_next(uint8_t **at, size_t want);
/* Reads `size` bytes, fewer only at the end. */
size_t tar_read(void *to, size_t size);
void tar_skip(uint64_t size);
uint64_t tar_padded(uint64_t size);
/* Reads a field in octal or base 256; false if its value does not fit. */
bool tar_number(const char *field, size_t room, int64_t *value);
bool tar_checksum_right(const struct tar_header *header);

/* An extended attribute. */
struct tar_xattr {
  char *name;
  uint8_t *value;
  size_t size;
};

/* tar-pax.c: fields of an entry from pax and GNU headers, which replace those of its own header. */
struct tar_extras {
  char *path, *link; /* NULL: not given */
  bool has_size, has_uid, has_gid, has_mtime, has_atime, extended;
  uint64_t size;
  int64_t uid, gid;
  struct timespec mtime, atime;
  struct tar_xattr *xattrs;
  size_t xattr_count, xattr_bytes;
};
/* Reads the body of an extended header of type x or g (records), L or K (names). */
void tar_read_extended(char type, uint64_t size, struct tar_extras *extras);
/* Fills missing times, owners and names of `extras` from `global`, which applies to all later entries. */
void tar_extras_default(struct tar_extras *extras, const struct tar_extras *global);
void tar_extras_free(struct tar_extras *extras);

/* tar-place.c: resolves paths below the destination; no path leads out of it. */
void tar_place_start(int destination);
/* Makes `path` relative to the destination: removes leading slashes and dots. NULL: it has `..`; empty: the destination itself. */
char *tar_clean(char *path);
/*
 * Opens the directory of `path` (cleaned), valid until the next call, and sets `name` to its last name. `make`: makes missing
 * directories. Follows a link on the way only to a directory below the destination; anything else is an errno.
 */
int tar_place(const char *path, bool make, int *at, const char **name);
/* Opens the directory `name`, or the directory below the destination that a link of that name leads to; -1 with errno. */
int tar_open_directory(int at, const char *name);

#endif
