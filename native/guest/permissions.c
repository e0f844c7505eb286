#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"
#include "files.h"
#include "identity.h"
#include "temporary.h"
#include "walk.h"

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

bool owner_find(const char *user, const char *group, uid_t *uid, gid_t *gid, enum subject *subject) {
  static const char whoever[] = "0:";
  struct account account;
  char spec[sizeof whoever + 256];
  *uid = (uid_t)-1;
  *gid = (gid_t)-1;
  if (*user) {
    *subject = SUBJECT_OWNER;
    if (account_resolve(user, &account) != NULL) return false;
    *uid = account.uid;
  }
  if (*group) {
    *subject = SUBJECT_GROUP;
    if (snprintf(spec, sizeof spec, "%s%s", whoever, group) >= (int)sizeof spec || account_resolve(spec, &account) != NULL) return false;
    *gid = account.gid;
  }
  *subject = SUBJECT_PATH;
  return true;
}

/*
 * Changes the entry `name` itself and never the target of a link that has replaced it: it is opened with O_PATH first. If the kernel
 * cannot chmod such a descriptor, the entry is opened for reading; sockets and devices are then left out.
 */
static int set_mode_itself(int at, const char *name, mode_t mode) {
  int held = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC), fd = -1;
  struct stat st, opened;
  if (held < 0) return errno == ENOENT ? 0 : errno;
  int error = fstat(held, &st) != 0 ? errno : 0;
  if (!error && !S_ISLNK(st.st_mode) && syscall(SYS_fchmodat2, held, "", mode, AT_EMPTY_PATH) != 0) {
    bool unknown = errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP || errno == EBADF;
    if (!unknown) error = errno;
    else if (S_ISDIR(st.st_mode)) fd = openat(held, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    else if (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode)) fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (unknown && fd < 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) error = errno == ELOOP || errno == ENOENT ? 0 : errno;
    if (fd >= 0 && fstat(fd, &opened) == 0 && opened.st_ino == st.st_ino && opened.st_dev == st.st_dev && fchmod(fd, mode) != 0)
      error = errno;
  }
  if (fd >= 0) close(fd);
  close(held);
  return error;
}

/* With a user's identity a plain fchmodat is safe, because a swapped link gives no further rights; it also works on unreadable files. */
static int set_mode(int at, const char *name, mode_t mode) {
  struct stat st;
  if (!identity_is_limited()) return set_mode_itself(at, name, mode);
  if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? 0 : errno;
  return S_ISLNK(st.st_mode) || fchmodat(at, name, mode, 0) == 0 || errno == ENOENT ? 0 : errno;
}

struct change {
  bool is_mode;
  mode_t mode;
  uid_t uid;
  gid_t gid;
};

static int change_one(const struct change *change, int at, const char *name) {
  if (change->is_mode) return set_mode(at, name, change->mode);
  return fchownat(at, name, change->uid, change->gid, AT_SYMLINK_NOFOLLOW) == 0 || errno == ENOENT ? 0 : errno;
}

/* Changes a directory before its entries, because only the new mode may allow to enter it. */
static int change_entry(void *context, int at, const char *name, unsigned char type) {
  struct stat st;
  if (is_temporary_name(name)) return WALK_ON;
  if (type == DT_UNKNOWN) type = fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) ? DT_DIR : DT_REG;
  int error = change_one(context, at, name);
  return error ? error : type == DT_DIR ? WALK_INTO : WALK_ON;
}

static int change_step(void *context, int at, const char *name) {
  (void)context, (void)at, (void)name;
  return 0;
}

static int change_missed(void *context, const char *name, int error) {
  (void)context, (void)name;
  return error == ENOENT || error == ENOTDIR ? 0 : error; /* gone, or swapped, meanwhile */
}

static const struct visitor changer = {change_entry, change_step, change_step, change_missed};

static int change_below(const char *path, struct change *change) {
  struct stat st;
  if (stat(path, &st) != 0) return errno;
  if (!S_ISDIR(st.st_mode)) return 0;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? errno : walk_tree(fd, &changer, change);
}

int change_mode(const char *path, mode_t mode, bool recursive) {
  if (chmod(path, mode) != 0) return errno;
  return recursive ? change_below(path, &(struct change){.is_mode = true, .mode = mode}) : 0;
}

int change_owner(const char *path, uid_t uid, gid_t gid, bool recursive) {
  if (chown(path, uid, gid) != 0) return errno;
  return recursive ? change_below(path, &(struct change){.uid = uid, .gid = gid}) : 0;
}
