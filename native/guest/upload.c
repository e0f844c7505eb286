#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "copy.h"
#include "files.h"
#include "identity.h"
#include "replacement.h"
#include "temporary.h"

struct upload {
  int references; /* one of the table, and one of each thread that works on it */
  char *path;
  int at;         /* the target directory */
  char name[256]; /* the name in it */
  int place;      /* the directory of the temporary file: `at` or a hidden place, which is never closed */
  char temporary[TEMPORARY_ROOM];
  bool is_placed; /* the temporary name is gone */
  int fd;
  int mode;
  bool append, has_owner, has_group, acts;
  uid_t uid; /* has_owner */
  gid_t gid; /* has_group */
  struct attributes attributes;
  struct identity identity; /* acts */
  bool exists;
  struct stat old; /* exists */
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct upload *table[UPLOADS_MAX]; /* a handle is an index + 1 */

static void act(const struct upload *u) { identity_assume(u->acts ? &u->identity : NULL); }

static void drop(struct upload *u) {
  pthread_mutex_lock(&table_lock);
  bool last = --u->references == 0;
  pthread_mutex_unlock(&table_lock);
  if (!last) return;
  identity_assume(NULL);
  if (u->fd >= 0 && !u->is_placed) unlinkat(u->place, u->temporary, 0);
  if (u->fd >= 0) close(u->fd);
  if (u->at >= 0) close(u->at);
  attributes_free(&u->attributes);
  free(u->path);
  free(u);
}

/* Finds an upload and adds a reference. `ends`: removes it from the table and takes the table's reference. */
static struct upload *take(uint32_t handle, bool ends) {
  pthread_mutex_lock(&table_lock);
  struct upload *u = handle >= 1 && handle <= UPLOADS_MAX ? table[handle - 1] : NULL;
  if (u && ends) table[handle - 1] = NULL;
  else if (u) u->references++;
  pthread_mutex_unlock(&table_lock);
  return u;
}

static uint32_t keep(struct upload *u) {
  uint32_t handle = 0;
  pthread_mutex_lock(&table_lock);
  for (uint32_t i = 0; i < UPLOADS_MAX && !handle; i++) {
    if (table[i]) continue;
    table[i] = u;
    handle = i + 1;
  }
  pthread_mutex_unlock(&table_lock);
  return handle;
}

/*
 * Looks up the file at the target, and checks that the upload's identity may write there: by the mode of an existing file, or for a
 * new file by the directory's, which the rename checks again.
 */
static int examine(struct upload *u) {
  u->exists = fstatat(u->at, u->name, &u->old, AT_SYMLINK_NOFOLLOW) == 0;
  if (!u->exists && errno != ENOENT) return errno;
  if (!u->exists) return !identity_is_limited() || faccessat(u->at, ".", W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
  if (S_ISDIR(u->old.st_mode)) return EISDIR;
  if (!S_ISREG(u->old.st_mode)) return EINVAL;
  if (!identity_is_limited()) return 0;
  int fd = openat(u->at, u->name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), error = 0;
  if (fd < 0 && errno != ETXTBSY) return errno; /* a running program may be replaced */
  if (fd >= 0 && fstat(fd, &u->old) != 0) error = errno;
  if (fd >= 0) close(fd);
  if (!error && !S_ISREG(u->old.st_mode)) error = EINVAL;
  /* Only the owner may set a mode, as in chmod(2). */
  return !error && u->mode >= 0 && u->old.st_uid != u->identity.uid ? EPERM : error;
}

/* The directory part and the last name of a path. */
static int split(const char *path, char directory[4096], char name[256]) {
  const char *slash = strrchr(path, '/');
  if (!slash || slash[1] == 0) return EISDIR;
  if (strlen(slash + 1) >= 256) return ENAMETOOLONG;
  strcpy(name, slash + 1);
  if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return EISDIR;
  snprintf(directory, 4096, "%.*s", slash == path ? 1 : (int)(slash - path), path);
  return 0;
}

static int open_place(struct upload *u, const char *path) {
  char target[4096], directory[4096];
  int error = follow_links(path, target);
  if (!error) error = split(target, directory, u->name);
  if (error) return error;
  u->at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (u->at < 0 && errno == ENOENT) {
    error = make_directories(directory);
    if (error) return error == EEXIST ? ENOTDIR : error;
    u->at = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  return u->at < 0 ? errno : examine(u);
}

/* Makes a temporary file in `place`. A user's new file beside its target is made with the user's rights, which the kernel checks. */
static int make_temporary(struct upload *u, int place) {
  char name[TEMPORARY_ROOM];
  temporary_name(name);
  if (!(place == u->at && identity_is_limited() && !u->exists)) identity_assume(NULL);
  int fd = openat(place, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
  int error = fd < 0 ? errno : 0;
  act(u);
  if (error) return error;
  u->fd = fd;
  u->place = place;
  u->is_placed = false;
  memcpy(u->temporary, name, sizeof name);
  return 0;
}

/* As root, which may set them on a file that no user can reach. */
static int set_attributes(struct upload *u) {
  identity_assume(NULL);
  int error = attributes_set(u->fd, &u->attributes);
  act(u);
  return error;
}

static int begin(struct upload *u, const char *path, const struct upload_wish *wish, enum subject *subject) {
  *u = (struct upload){.references = 1, .at = -1, .fd = -1, .place = -1, .mode = wish->mode, .append = wish->append};
  u->attributes = wish->attributes;
  *subject = SUBJECT_PATH;
  u->acts = identity_current() != NULL;
  if (u->acts) u->identity = *identity_current();
  act(u); /* with the copy, which lives as long as the upload */
  u->has_owner = *wish->owner != 0;
  u->has_group = *wish->group != 0;
  if (!owner_find(wish->owner, wish->group, &u->uid, &u->gid, subject)) return EINVAL;
  u->path = strdup(path);
  if (!u->path) _exit(70);
  int error = open_place(u, path);
  if (!error) error = make_temporary(u, temporary_place(u->at));
  if (error) return error;
  error = set_attributes(u);
  if (error) *subject = SUBJECT_ATTRIBUTES;
  return error;
}

int upload_begin(const char *path, const struct upload_wish *wish, uint32_t *handle, int *fd, enum subject *subject) {
  const struct identity *asked = identity_current();
  struct upload *u = malloc(sizeof *u);
  if (!u) _exit(70);
  int error = begin(u, path, wish, subject);
  if (!error) *fd = u->fd;
  if (!error && !(*handle = keep(u))) error = EMFILE;
  if (error) drop(u);
  identity_assume(asked);
  return error;
}

static int fill(struct upload *u, const uint8_t *data, size_t size, uint64_t offset) {
  if (offset > INT64_MAX - size) return EFBIG;
  for (size_t done = 0; done < size;) {
    ssize_t n = pwrite(u->fd, data + done, size - done, (off_t)(offset + done));
    if (n > 0) done += (size_t)n;
    else if (n == 0) return EIO;
    else if (errno != EINTR) return errno;
  }
  return 0;
}

int upload_write(uint32_t handle, const uint8_t *data, size_t size, uint64_t offset) {
  struct upload *u = take(handle, false);
  if (!u) return EBADF;
  int error = fill(u, data, size, offset);
  drop(u);
  return error;
}

/* Sets owner, then mode: a change of owner clears setuid. */
static int dress(struct upload *u, struct stat *st) {
  struct stat directory;
  bool limited = u->acts && u->identity.uid != 0;
  uid_t uid = u->exists ? u->old.st_uid : u->acts ? u->identity.uid : 0;
  gid_t gid = u->exists ? u->old.st_gid : u->acts ? u->identity.gid : 0;
  /* A setgid directory gives its group to new files. */
  if (!u->exists && fstat(u->at, &directory) == 0 && (directory.st_mode & S_ISGID)) gid = directory.st_gid;
  mode_t bits = u->mode >= 0 ? (mode_t)u->mode : u->exists ? u->old.st_mode & 07777 : 0644;
  /* A user must not write a program that runs with another owner's rights, or with those of a group that the user is not in. */
  if (limited && u->exists && u->mode < 0) bits &= ~(mode_t)(S_ISUID | S_ISGID);
  if (limited && !identity_has_group(&u->identity, gid)) bits &= ~(mode_t)S_ISGID;
  if (u->has_owner) uid = u->uid;
  if (u->has_group) gid = u->gid;
  if (fstat(u->fd, st) != 0) return errno;
  if ((st->st_uid != uid || st->st_gid != gid) && fchown(u->fd, uid, gid) != 0) return errno;
  if (fchmod(u->fd, bits) != 0) return errno;
  return fstat(u->fd, st) == 0 ? 0 : errno;
}

#define NOREPLACE 1

/* Renames without replacing: EEXIST if the target exists by now. */
static int rename_new(int from, const char *name, int at, const char *to) {
  if (syscall(SYS_renameat2, from, name, at, to, NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (linkat(from, name, at, to, 0) != 0) return errno;
  unlinkat(from, name, 0);
  return 0;
}

/*
 * An existing file is replaced as root: the user may write it, and a write needs no rights on the directory. A new file adds a name to
 * the directory, so the rename uses the user's rights, unless the user's rights already made the file beside its target.
 */
static int rename_in(struct upload *u) {
  bool as_user = identity_is_limited() && !u->exists && u->place != u->at;
  if (!as_user) identity_assume(NULL);
  int error = u->append || (u->place == u->at && !u->exists)          ? rename_new(u->place, u->temporary, u->at, u->name)
              : renameat(u->place, u->temporary, u->at, u->name) == 0 ? 0
                                                                      : errno;
  act(u);
  if (!error) u->is_placed = true;
  return error;
}

/* The target is on the hidden place's file system but below another mount: copies the file to a new one beside its target. */
static int move_beside(struct upload *u, struct stat *st) {
  int fd = u->fd, place = u->place;
  char name[TEMPORARY_ROOM];
  memcpy(name, u->temporary, sizeof name);
  u->fd = -1;
  int error = make_temporary(u, u->at);
  off_t written;
  if (!error) error = copy_bytes(fd, u->fd, &written);
  if (!error) error = set_attributes(u);
  identity_assume(NULL);
  if (!error) error = dress(u, st);
  unlinkat(place, name, 0);
  close(fd);
  act(u);
  return error;
}

static int put_in_place(struct upload *u, struct stat *st) {
  identity_assume(NULL);
  int error = dress(u, st);
  act(u);
  if (error) return error;
  if (u->exists) replacement_note(st);
  error = rename_in(u);
  if (error != EXDEV || u->place == u->at) return error;
  error = move_beside(u, st);
  if (!error && u->exists) replacement_note(st);
  return error ? error : rename_in(u);
}

/* Appends everything or nothing: after a failure truncates the file again, unless another program has appended since. */
static int append_bytes(struct upload *u, int target) {
  struct stat before, after;
  if (fstat(target, &before) != 0) return errno;
  off_t written;
  int error = copy_bytes(u->fd, target, &written);
  if (error && fstat(target, &after) == 0 && after.st_size == before.st_size + written && ftruncate(target, before.st_size) != 0)
    return errno;
  return error;
}

static int append_to(struct upload *u, struct stat *st) {
  int target = openat(u->at, u->name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (target < 0) return errno;
  int error = fstat(target, st) != 0 ? errno : !S_ISREG(st->st_mode) ? EINVAL : append_bytes(u, target);
  identity_assume(NULL);
  uid_t uid = u->has_owner ? u->uid : (uid_t)-1;
  gid_t gid = u->has_group ? u->gid : (gid_t)-1;
  if (!error && (u->has_owner || u->has_group) && fchown(target, uid, gid) != 0) error = errno;
  if (!error && u->mode >= 0 && fchmod(target, (mode_t)u->mode) != 0) error = errno;
  if (!error && fstat(target, st) != 0) error = errno;
  close(target);
  act(u);
  return error;
}

static int commit(struct upload *u, struct stat *st) {
  for (int attempt = 0; attempt < 16; attempt++) {
    int error = examine(u);
    if (!error) error = u->append && u->exists ? append_to(u, st) : put_in_place(u, st);
    /* The target appeared or disappeared in between: try again. */
    bool again = u->append ? error == EEXIST || (error == ENOENT && u->exists) : error == EEXIST;
    if (!again) return error;
  }
  return EBUSY;
}

int upload_commit(uint32_t handle, char **path, struct stat *st) {
  const struct identity *asked = identity_current();
  struct upload *u = take(handle, true);
  if (!u) return EBADF;
  act(u);
  int error = commit(u, st);
  *path = strdup(u->path);
  if (!*path) _exit(70);
  drop(u);
  identity_assume(asked);
  return error;
}

int upload_whole(const char *path, int mode, const uint8_t *data, size_t size, struct stat *st) {
  const struct identity *asked = identity_current();
  struct upload *u = malloc(sizeof *u);
  if (!u) _exit(70);
  enum subject subject;
  struct upload_wish wish = {.mode = mode, .owner = "", .group = ""};
  int error = begin(u, path, &wish, &subject);
  if (!error) error = fill(u, data, size, 0);
  if (!error && (error = put_in_place(u, st)) == EEXIST) error = commit(u, st);
  drop(u);
  identity_assume(asked);
  return error;
}

void upload_abandon(uint32_t handle) {
  const struct identity *asked = identity_current();
  struct upload *u = take(handle, true);
  if (u) drop(u);
  identity_assume(asked);
}
