#include "identity.h"

#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"

static _Thread_local const struct identity *current;

bool identity_find(const char *user, struct identity *identity) {
  struct account account;
  if (account_resolve(user, &account) != NULL) return false;
  identity->uid = account.uid;
  identity->gid = account.gid;
  identity->group_count = account.group_count;
  memcpy(identity->groups, account.groups, sizeof identity->groups);
  return true;
}

/* Uses raw system calls, because libc's functions change every thread. Real and saved uid stay root's, for the way back. */
static void set_ids(uid_t uid, gid_t gid, size_t group_count, const gid_t *groups) {
  bool to_root = uid == 0;
  if (to_root && syscall(SYS_setresuid, -1, uid, -1) != 0) _exit(70);
  if (syscall(SYS_setgroups, group_count, groups) != 0 || syscall(SYS_setresgid, -1, gid, -1) != 0) _exit(70);
  if (!to_root && syscall(SYS_setresuid, -1, uid, -1) != 0) _exit(70);
}

void identity_assume(const struct identity *identity) {
  if (identity == current) return;
  if (current) set_ids(0, 0, 0, NULL);
  current = identity;
  if (identity) set_ids(identity->uid, identity->gid, (size_t)identity->group_count, identity->groups);
}

const struct identity *identity_current(void) { return current; }

bool identity_is_limited(void) { return current && current->uid != 0; }

bool identity_has_group(const struct identity *identity, gid_t gid) {
  if (identity->gid == gid) return true;
  for (int i = 0; i < identity->group_count; i++)
    if (identity->groups[i] == gid) return true;
  return false;
}
