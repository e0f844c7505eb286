#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "files.h"
#include "tar-links.h"
#include "tar.h"
#include "wire.h"

#define TIMES_MAX 1000000 /* directories whose times are set at the end */
#define REPORTED_MAX 16   /* most skipped entries reported by name */
#define READ_CHUNK 65536
/* Times that both ext4 and gVisor can store: seconds from 1901 to 2262. */
#define EARLIEST (-(1ll << 31))
#define LATEST 9223372035ll

/* One entry, from all its headers. */
struct entry {
  char type; /* as in the header; '0' for every kind of file */
  char *path; /* cleaned */
  const char *link;
  mode_t mode;
  uid_t uid;
  gid_t gid;
  dev_t device;
  struct timespec times[2];
  uint64_t data; /* bytes of data after the header */
  const struct tar_extras *extras;
};

struct directory_times {
  char *path;
  struct timespec times[2];
};

static unsigned long entries, skipped;
static struct directory_times *directories;
static size_t directory_count, directory_room;

/* Whether the error is about the disk or the machine and not about this entry: all others would fail as well. */
static bool ends_all(int error) {
  return error == ENOSPC || error == EDQUOT || error == EIO || error == ENOMEM || error == EMFILE || error == ENFILE;
}

static void skip_entry(int error, const char *path) {
  if (ends_all(error)) tar_failed(error, path);
  if (skipped++ >= REPORTED_MAX) return;
  char name[256];
  snprintf(name, sizeof name, "%s", path);
  for (char *at = name; (at = strchr(at, '\n'));) *at = '?';
  dprintf(2, "skipped %d %s\n", error, name);
}

/* Removes what is in the place of a new entry, unless it is a directory. */
static int clear_place(int at, const char *name) {
  struct stat st;
  if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? 0 : errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  return unlinkat(at, name, 0) == 0 || errno == ENOENT ? 0 : errno;
}

/* Sets the owner. Files that a user other than root unpacks are the user's. */
static int set_owner(int at, const char *name, uid_t uid, gid_t gid) {
  return geteuid() != 0 || fchownat(at, name, uid, gid, AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH)) == 0 ? 0 : errno;
}

/* Whether the disk is full: ext4 answers ENOSPC also for an attribute too large for an inode. */
static bool is_full(int fd, int error) {
  struct statvfs st;
  return error == EDQUOT || (error == ENOSPC && (fstatvfs(fd, &st) != 0 || st.f_bavail == 0 || st.f_favail == 0));
}

/* Sets owner, mode, attributes and times. Owner first, because its change clears the others. Unsupported attributes are left out. */
static int dress(int fd, const struct entry *e) {
  int error = set_owner(fd, "", e->uid, e->gid);
  if (error) return error;
  struct stat st;
  /* A directory of another owner, to which a user only adds entries, keeps its mode. */
  if (geteuid() != 0 && fstat(fd, &st) == 0 && st.st_uid != geteuid()) return 0;
  if (fchmod(fd, e->mode) != 0) return errno;
  for (size_t i = 0; i < e->extras->xattr_count; i++) {
    const struct tar_xattr *x = &e->extras->xattrs[i];
    if (fsetxattr(fd, x->name, x->value, x->size, 0) == 0) continue;
    error = errno;
    if (is_full(fd, error)) return error;
  }
  futimens(fd, e->times);
  return 0;
}

/* Makes a file. Reads the entry's data to its end even after an error. */
static int make_file(int at, const char *name, const struct entry *e) {
  int error = clear_place(at, name), fd = -1;
  if (!error) {
    fd = openat(at, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) error = errno;
  }
  for (uint64_t left = e->data; left > 0;) {
    uint8_t *bytes;
    size_t n = tar_next(&bytes, left < READ_CHUNK ? (size_t)left : READ_CHUNK);
    if (n == 0) tar_invalid("it ends in the middle of a file");
    if (!error && !write_all(fd, bytes, n)) error = errno;
    left -= n;
  }
  tar_skip(tar_padded(e->data) - e->data);
  if (!error) error = dress(fd, e);
  if (fd >= 0 && close(fd) != 0 && !error) error = errno;
  return error;
}

static void remember_times(const struct entry *e) {
  if (directory_count == TIMES_MAX) return;
  if (directory_count == directory_room) {
    directory_room = directory_room ? directory_room * 2 : 64;
    directories = realloc(directories, directory_room * sizeof *directories);
    if (!directories) tar_failed(ENOMEM, e->path);
  }
  char *path = strdup(e->path);
  if (!path) tar_failed(ENOMEM, e->path);
  directories[directory_count++] = (struct directory_times){path, {e->times[0], e->times[1]}};
}

static int make_directory(int at, const char *name, const struct entry *e) {
  /* Keep a link to a directory: `lib/` unpacked over /lib -> usr/lib must not replace it. A link that leads outside is replaced. */
  int fd = tar_open_directory(at, name);
  if (fd < 0) {
    int error = clear_place(at, name);
    if (error) return error;
    if (mkdirat(at, name, 0700) != 0) return errno;
    fd = tar_open_directory(at, name);
    if (fd < 0) return errno;
  }
  int error = dress(fd, e);
  close(fd);
  if (!error) remember_times(e);
  return error;
}

static int make_special(int at, const char *name, const struct entry *e) {
  int error = clear_place(at, name);
  mode_t kind = e->type == '3' ? S_IFCHR : e->type == '4' ? S_IFBLK : S_IFIFO;
  if (error) return error;
  if (mknodat(at, name, kind | (e->mode & 0777), e->device) != 0) return errno;
  error = set_owner(at, name, e->uid, e->gid);
  if (error) return error;
  utimensat(at, name, e->times, AT_SYMLINK_NOFOLLOW);
  return 0;
}

static int make_hard_link(int at, const char *name, const char *link) {
  char *target = strdup(link);
  if (!target) return ENOMEM;
  char *clean = tar_clean(target);
  int error = clean && *clean ? 0 : EXDEV, here = -1, there;
  const char *target_name;
  if (!error && (here = fcntl(at, F_DUPFD_CLOEXEC, 0)) < 0) error = errno; /* the next look-up closes `at` */
  if (!error) error = tar_place(clean, false, &there, &target_name);
  struct stat st, old;
  if (!error && fstatat(there, target_name, &st, AT_SYMLINK_NOFOLLOW) != 0) error = errno;
  /* A link to itself, as in archives that were appended to. */
  bool same = !error && fstatat(here, name, &old, AT_SYMLINK_NOFOLLOW) == 0 && old.st_ino == st.st_ino && old.st_dev == st.st_dev;
  if (!error && !same) error = clear_place(here, name);
  if (!error && !same && linkat(there, target_name, here, name, 0) != 0) error = errno;
  if (here >= 0) close(here);
  free(target);
  return error;
}

static void make_later(const struct entry *e) {
  struct tar_link link = {.hard = e->type == '1', .uid = e->uid, .gid = e->gid, .times = {e->times[0], e->times[1]}};
  link.path = strdup(e->path);
  link.target = strdup(e->link);
  if (!link.path || !link.target) tar_failed(ENOMEM, e->path);
  tar_links_add(link);
}

static int make_symlink(int at, const char *name, const struct tar_link *link) {
  int error = *link->target ? clear_place(at, name) : EINVAL;
  if (error) return error;
  if (symlinkat(link->target, at, name) != 0) return errno;
  error = set_owner(at, name, link->uid, link->gid);
  if (error) return error;
  utimensat(at, name, link->times, AT_SYMLINK_NOFOLLOW);
  return 0;
}

static void make_links(void) {
  for (const struct tar_link *link; (link = tar_links_next());) {
    int at;
    const char *name;
    int error = tar_place(link->path, true, &at, &name);
    if (!error) error = link->hard ? make_hard_link(at, name, link->target) : make_symlink(at, name, link);
    if (error) skip_entry(error, link->path);
    else entries++;
  }
}

/* Makes the entry, or skips and reports it. Reads its data in either case. */
static void extract(const struct entry *e) {
  int at;
  const char *name;
  bool file = e->type == '0';
  tar_links_cancel(e->path);
  int error = tar_place(e->path, true, &at, &name);
  if (!error && strlen(name) > NAME_MAX) error = ENAMETOOLONG;
  bool later = !error && (e->type == '2' || (e->type == '1' && (error = make_hard_link(at, name, e->link)) == ENOENT));
  if (later) {
    error = 0;
    make_later(e);
  } else if (!error) {
    if (file) error = make_file(at, name, e);
    else if (e->type == '5') error = make_directory(at, name, e);
    else if (e->type != '1') error = make_special(at, name, e);
  } else if (file) {
    tar_skip(tar_padded(e->data));
  }
  if (!file) tar_skip(tar_padded(e->data));
  if (error) skip_entry(error, e->path);
  else if (!later) entries++;
}

static char *header_path(const struct tar_header *h) {
  char *path;
  bool ustar = memcmp(h->magic, "ustar\0", 6) == 0 && h->prefix[0];
  int n = ustar ? asprintf(&path, "%.155s/%.100s", h->prefix, h->name) : asprintf(&path, "%.100s", h->name);
  if (n < 0) tar_failed(ENOMEM, "");
  return path;
}

/* Reads the id of a user or group; false if it is out of range. */
static bool read_owner(bool given, int64_t extra, const char *field, unsigned *id) {
  int64_t value = extra;
  if ((!given && !tar_number(field, 8, &value)) || value < 0 || value >= 0xffffffffll) return false;
  *id = (unsigned)value;
  return true;
}

/* The nearest time that a file can have. */
static struct timespec held_time(struct timespec time) {
  if (time.tv_sec < EARLIEST) return (struct timespec){.tv_sec = EARLIEST};
  return time.tv_sec > LATEST ? (struct timespec){.tv_sec = LATEST} : time;
}

/* Fills the entry from its headers. 0, or the errno to skip it with. */
static int read_fields(const struct tar_header *h, const struct tar_extras *x, struct entry *e) {
  int64_t mode, seconds, major_number = 0, minor_number = 0;
  bool right = tar_number(h->mode, sizeof h->mode, &mode) && tar_number(h->mtime, sizeof h->mtime, &seconds);
  e->mode = (mode_t)mode & 07777;
  e->times[1] = held_time(x->has_mtime ? x->mtime : (struct timespec){.tv_sec = seconds});
  e->times[0] = x->has_atime ? held_time(x->atime) : e->times[1];
  if (e->type == '3' || e->type == '4')
    right = right && tar_number(h->major, sizeof h->major, &major_number) && tar_number(h->minor, sizeof h->minor, &minor_number);
  e->device = makedev((unsigned)major_number, (unsigned)minor_number);
  right = right && read_owner(x->has_uid, x->uid, h->uid, &e->uid) && read_owner(x->has_gid, x->gid, h->gid, &e->gid);
  return right ? 0 : EOVERFLOW;
}

/* Bytes of data after the header. Some old programs give links and directories a size without data. */
static uint64_t data_size(const struct tar_header *h, const struct tar_extras *x, char type) {
  int64_t value = 0;
  if (!x->has_size && (!tar_number(h->size, sizeof h->size, &value) || value < 0)) tar_invalid("an entry's size is none");
  uint64_t size = x->has_size ? x->size : (uint64_t)value;
  if (size > INT64_MAX - TAR_BLOCK) tar_invalid("an entry's size is none");
  if (type == '1') return x->extended ? size : 0;
  return type >= '2' && type <= '6' ? 0 : size;
}

/* Extracts an entry. Skips it if its type is unknown or its path leads out of the destination. */
static void extract_entry(const struct tar_header *h, const struct tar_extras *x) {
  char *path = x->path ? strdup(x->path) : header_path(h), *link = x->link ? strdup(x->link) : strndup(h->link, sizeof h->link);
  if (!path || !link) tar_failed(ENOMEM, "");
  struct entry e = {.type = h->type == 0 || h->type == '7' ? '0' : h->type, .link = link, .extras = x};
  /* Old archives mark directories by a final slash. */
  if ((e.type == '0' && *path && path[strlen(path) - 1] == '/') || e.type == 'D') e.type = '5';
  if (h->type == 'S' || h->type == 'M') tar_invalid("sparse and multi-volume archives are not supported; pack without --sparse");
  /* GNU's type D is a directory with a list of names as data. */
  e.data = data_size(h, x, h->type == 'D' ? 'D' : e.type);
  bool label = e.type == 'V', known = e.type >= '0' && e.type <= '6';
  e.path = known ? tar_clean(path) : NULL;
  int error = e.path ? read_fields(h, x, &e) : EXDEV;
  if (label || (e.path && *e.path == 0)) tar_skip(tar_padded(e.data)); /* the volume's name, or the destination itself */
  else if (error) {
    tar_skip(tar_padded(e.data));
    skip_entry(known ? error : EOPNOTSUPP, path);
  } else extract(&e);
  free(path);
  free(link);
}

static void extract_all(void) {
  struct tar_extras extras = {0}, global = {0};
  for (bool first = true;; first = false) {
    struct tar_header h;
    size_t n = tar_read(&h, sizeof h);
    if (n == 0) {
      if (first) tar_invalid("it is empty");
      return; /* an archive cut at an entry's end, as some tools write them */
    }
    if (n != sizeof h) tar_invalid(first ? "it is no tar archive" : "it ends in the middle of a header");
    if (h.name[0] == 0 && h.checksum[0] == 0) { /* the end mark; what follows is padding */
      uint8_t *at;
      while (tar_next(&at, READ_CHUNK) > 0) continue;
      return;
    }
    if (!tar_checksum_right(&h)) tar_invalid(first ? "it is no tar archive" : "a header's checksum is wrong");
    if (h.type == 'X') h.type = 'x'; /* Solaris' own */
    if (h.type == 'x' || h.type == 'g' || h.type == 'L' || h.type == 'K') {
      int64_t size;
      if (!tar_number(h.size, sizeof h.size, &size) || size < 0) tar_invalid("an extended header's size is none");
      tar_read_extended(h.type, (uint64_t)size, h.type == 'g' ? &global : &extras);
      continue;
    }
    tar_extras_default(&extras, &global);
    extract_entry(&h, &extras);
    tar_extras_free(&extras);
  }
}

static void set_directory_times(void) {
  for (size_t i = 0; i < directory_count; i++) {
    int at;
    const char *name;
    int fd = tar_place(directories[i].path, false, &at, &name) == 0 ? tar_open_directory(at, name) : -1;
    if (fd < 0) continue;
    futimens(fd, directories[i].times);
    close(fd);
  }
}

int tar_extract(const char *directory) {
  int error = make_directories(directory);
  if (error) tar_failed(error == EEXIST ? ENOTDIR : error, directory);
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) tar_failed(errno, directory);
  tar_place_start(fd);
  umask(0);
  extract_all();
  make_links();
  set_directory_times();
  dprintf(2, "done %lu %lu\n", entries, skipped);
  return 0;
}
