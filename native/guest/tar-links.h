/* Links of an archive that are made after all other entries, so that no entry can be placed through one. */
#ifndef CLOCHE_TAR_LINKS_H
#define CLOCHE_TAR_LINKS_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#define TAR_LINKS_MAX 1000000

struct tar_link {
  char *path, *target;
  bool hard;      /* a hard link whose target did not exist yet in its turn */
  bool cancelled; /* a later entry took its place */
  uid_t uid;
  gid_t gid;
  struct timespec times[2];
};

/* Adds a link; owns its strings from then on. */
void tar_links_add(struct tar_link link);
/* Cancels the link at this path, because a later entry takes its place. */
void tar_links_cancel(const char *path);
/* The next link to make, in order of the archive; NULL: no more. */
const struct tar_link *tar_links_next(void);

#endif
