/*
 * The rights that a file request is carried out with: root's, or those of the user that the request names, with supplementary
 * groups. Each thread has its own: the kernel checks every path, link and `..` with the present identity of the thread.
 */
#ifndef CLOCHE_IDENTITY_H
#define CLOCHE_IDENTITY_H

#include <stdbool.h>
#include <sys/types.h>

#include "launcher.h"

struct identity {
  uid_t uid;
  gid_t gid;
  int group_count;
  gid_t groups[GROUPS_MAX];
};

/* Finds the identity of a name or uid, or of either with `:group`; false: unknown. */
bool identity_find(const char *user, struct identity *identity);

/*
 * From here on this thread acts with that identity, until the next call; NULL: as root. The caller keeps `identity` valid meanwhile.
 * If the change is refused, the process ends, because nothing may be done with the wrong rights.
 */
void identity_assume(const struct identity *identity);
/* The thread's present identity; NULL: root. */
const struct identity *identity_current(void);
/* Whether the kernel checks this thread's rights: false for uid 0, in any group. */
bool identity_is_limited(void);
/* Whether the identity is in the group. */
bool identity_has_group(const struct identity *identity, gid_t gid);

#endif
