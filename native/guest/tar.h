/* The archive programs: POSIX tar on stdin and stdout, run inside the guest as `cloche-guest tar-create|tar-extract DIR`. */
#ifndef CLOCHE_TAR_H
#define CLOCHE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define TAR_BLOCK 512
/* The key of a pax record that is an extended attribute begins so. */
#define PAX_XATTR "SCHILY.xattr."

struct tar_header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
  char magic[8], uname[32], gname[32], major[8], minor[8], prefix[155], padding[12];
};

/*
 * Both report on stderr and by their exit status. The last line is, with 0: `done <entries> <skipped>`; 1: `failed <errno> <entry>`;
 * 2: `invalid <what is wrong with the archive>`. Before it come a few lines `skipped <errno> <entry>`; a line break in a name is `?`.
 */
int tar_create(const char *directory);
int tar_extract(const char *directory);

/* tar-input.c: the archive on stdin. What cannot be read ends the process. */
_Noreturn void tar_invalid(const char *what);
_Noreturn void tar_failed(int error, const char *path);
/* Up to `want` bytes in one piece; 0 at the end. */
size_t tar_next(uint8_t **at, size_t want);
/* As many as there are of `size` bytes. */
size_t tar_read(void *to, size_t size);
void tar_skip(uint64_t size);
uint64_t tar_padded(uint64_t size);
/* A field in octal or base 256; false where its value does not fit. */
bool tar_number(const char *field, size_t room, int64_t *value);
bool tar_checksum_right(const struct tar_header *header);

/* An extended attribute. */
struct tar_xattr {
  char *name;
  uint8_t *value;
  size_t size;
};

/* tar-pax.c: what pax and GNU headers say about an entry, in place of its own header's fields. */
struct tar_extras {
  char *path, *link; /* NULL: not given, as with all that follow */
  bool has_size, has_uid, has_gid, has_mtime, has_atime, extended;
  uint64_t size;
  int64_t uid, gid;
  struct timespec mtime, atime;
  struct tar_xattr *xattrs;
  size_t xattr_count, xattr_bytes;
};
/* Reads the body of an extended header: of type x, g (both records), L or K. */
void tar_read_extended(char type, uint64_t size, struct tar_extras *extras);
/* What `extras` leaves open is taken from `global`, which goes for all entries after it: times, owners, names. */
void tar_extras_default(struct tar_extras *extras, const struct tar_extras *global);
void tar_extras_free(struct tar_extras *extras);

/* tar-place.c: paths below the destination, which nothing leads out of. */
void tar_place_start(int destination);
/* A path relative to the destination: leading slashes and dots go. NULL: it has `..`; empty: the destination itself. */
char *tar_clean(char *path);
/*
 * The directory that `path` (cleaned) lies in, open until the next call, and its last name; those on the way are made where `make`.
 * A link on the way is followed where it leads to a directory below the destination: any other way is an errno.
 */
int tar_place(const char *path, bool make, int *at, const char **name);
/* The directory `name` itself, or one below the destination that a link of that name leads to; -1 with errno. */
int tar_open_directory(int at, const char *name);

#endif
