/*
 * Whose rights a file request is carried out with: root's, or those of a user that the request names, supplementary groups
 * included. A thread's own: the kernel checks every path, link and `..` on the way for whoever it is at that moment.
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

/* Of `name`, uid, or either with `:group`; false: there is no such one. */
bool identity_find(const char *user, struct identity *identity);

/*
 * From here on this thread acts as that one, until the next call; NULL: as root. The caller keeps it for as long. The process ends
 * where the change is refused, for nothing may be done with rights that are not meant.
 */
void identity_assume(const struct identity *identity);
/* Whom this thread acts as; NULL: root. */
const struct identity *identity_current(void);
/* Whether the kernel refuses it anything: false of root, in whichever group. */
bool identity_is_limited(void);
/* Whether it is in the group. */
bool identity_has_group(const struct identity *identity, gid_t gid);

#endif
