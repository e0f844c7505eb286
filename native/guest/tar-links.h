/* The links of an archive, which are made after everything else: nothing that comes later can go through one. */
#ifndef CLOCHE_TAR_LINKS_H
#define CLOCHE_TAR_LINKS_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#define TAR_LINKS_MAX 1000000

struct tar_link {
  char *path, *target;
  bool hard;      /* a hard link whose target was not there in its turn */
  bool cancelled; /* a later entry took its place */
  uid_t uid;
  gid_t gid;
  struct timespec times[2];
};

/* Takes both strings. */
void tar_links_add(struct tar_link link);
/* An entry at this path is about to be made: a link that was to be there is not. */
void tar_links_cancel(const char *path);
/* The next one that is to be made, in the order in which they came; NULL: there are no more. */
const struct tar_link *tar_links_next(void);

#endif
