/* Users and groups of the guest's own tree. Users can change its account files, so they may be anything, even no regular files. */
#ifndef CLOCHE_ACCOUNT_H
#define CLOCHE_ACCOUNT_H

#include <stdbool.h>
#include <sys/types.h>

#include "launcher.h"

#define ACCOUNT_FILE_MAX (1u << 20)

struct account {
  uid_t uid;
  gid_t gid;
  int group_count;
  gid_t groups[GROUPS_MAX];
  char name[256], home[1024], shell[256];
};

/* Resolves "", name, uid, name:group, uid:gid. NULL when found, else what is unknown ("user x" without the name: the caller names it). */
const char *account_resolve(const char *spec, struct account *account);

/* Sets the shell where account_resolve has not: root's from /etc/passwd, else /bin/sh, as passwd(5) says. */
void account_find_shell(struct account *account);

/* Names of owners, read once per request and freed by account_names_free. */
struct account_name_memory {
  bool known;
  unsigned id;
  char name[64];
};
struct account_names {
  char *passwd, *group;
  bool loaded;
  struct account_name_memory last[2];
};
/* Writes the name of a uid (or gid) into `out`, or its number when it has none. */
void account_name(struct account_names *names, bool group, unsigned id, char out[64]);
void account_names_free(struct account_names *names);

#endif
