/*
 * /run is a tmpfs and empty at every start of a guest. On Debian with systemd two things fill it at boot, and packages rely on
 * them: the lines of tmpfiles.d, and RuntimeDirectory= of the units that are started. Guests have no systemd, so this file
 * does it: lines d, D, L, f, F and p for paths below /run, and the runtime directories of all installed units.
 *
 * The guest's root can change these files, and they act with its rights. Still nothing is made outside /run: each path is walked
 * from its descriptor, and a link on the way ends the walk. Bounds: FILES_MAX files of a kind, FILE_MAX bytes each.
 */
#include "tmpfiles.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account.h"
#include "directory.h"

#define FILES_MAX 1024
#define FILE_MAX (64u << 10)
#define FIELDS 7

struct place {
  uid_t uid;
  gid_t gid;
  mode_t mode;
};

static int run_fd;

/* The text of a regular file, valid until the next call; NULL if it is anything else, too large or missing. */
static char *read_text(int folder, const char *name) {
  static char text[FILE_MAX + 1];
  int fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return NULL;
  struct stat st;
  bool whole = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= FILE_MAX;
  size_t size = 0;
  for (ssize_t n; whole && size < (size_t)st.st_size && (n = read(fd, text + size, (size_t)st.st_size - size)) > 0;) size += (size_t)n;
  text[size] = 0;
  close(fd);
  return whole ? text : NULL;
}

#define FOLDERS_MAX 3

struct file {
  char name[256];
  int folder;
};

static int by_name(const void *a, const void *b) { return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name); }

/* Calls `each` with the text of every file with that ending, sorted by name; of equal names the first folder wins. */
static void each_file(const char *const folders[FOLDERS_MAX], const char *ending, void (*each)(char *text)) {
  struct file *files = malloc(FILES_MAX * sizeof *files);
  DIR *open_folders[FOLDERS_MAX];
  struct stat st[FOLDERS_MAX];
  size_t count = 0;
  if (!files) return;
  for (int i = 0; i < FOLDERS_MAX; i++) {
    size_t before = count;
    DIR *folder = open_folders[i] = opendir(folders[i]);
    if (!folder || fstat(dirfd(folder), &st[i]) != 0) st[i] = (struct stat){0};
    /* In Debian /lib is /usr/lib. */
    if (i > 0 && st[i].st_ino == st[i - 1].st_ino && st[i].st_dev == st[i - 1].st_dev) continue;
    for (struct dirent *entry; folder && count < FILES_MAX && (entry = readdir(folder));) {
      size_t size = strlen(entry->d_name);
      bool known = size <= strlen(ending) || strcmp(entry->d_name + size - strlen(ending), ending) != 0;
      for (size_t at = 0; !known && at < before; at++) known = strcmp(files[at].name, entry->d_name) == 0;
      if (known) continue;
      snprintf(files[count].name, sizeof files->name, "%s", entry->d_name);
      files[count++].folder = dirfd(folder);
    }
  }
  qsort(files, count, sizeof *files, by_name);
  for (size_t at = 0; at < count; at++) {
    char *text = read_text(files[at].folder, files[at].name);
    if (text) each(text);
  }
  for (int i = 0; i < FOLDERS_MAX; i++)
    if (open_folders[i]) closedir(open_folders[i]);
  free(files);
}

/* "a/b" for "/run/a/b" or "/var/run/a/b". NULL: outside /run, or with a specifier of systemd (%i). */
static const char *below_run(const char *path) {
  if (strchr(path, '%')) return NULL;
  if (strncmp(path, "/var/run/", 9) == 0) return path + 9;
  if (strncmp(path, "/var/lock/", 10) == 0) return path + 5;
  return strncmp(path, "/run/", 5) == 0 ? path + 5 : NULL;
}

/* Opens the directory of `path`, relative to /run; makes missing ones. `leaf` gets the last name. -1: failed, or a link on the way. */
static int open_parent(const char *path, char leaf[256]) {
  int at = openat(run_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  *leaf = 0;
  while (at >= 0) {
    while (*path == '/') path++;
    size_t size = strcspn(path, "/");
    if (size == 0) break;
    if (*leaf) {
      mkdirat(at, leaf, 0755);
      int next = open_directory_itself(at, leaf);
      close(at);
      if ((at = next) < 0) return -1;
    }
    if (size >= 256 || strncmp(path, ".", size) == 0 || strncmp(path, "..", size) == 0) break;
    memcpy(leaf, path, size);
    leaf[size] = 0;
    path += size;
    if (path[strspn(path, "/")] == 0) return at;
  }
  if (at >= 0) close(at);
  return -1;
}

static void set_place(int fd, struct place place) {
  /* The owner first: its change clears set-uid and set-gid. */
  if (fchown(fd, place.uid, place.gid) == 0) fchmod(fd, place.mode);
}

static void make(char kind, const char *path, struct place place, const char *argument) {
  char leaf[256];
  int parent = open_parent(path, leaf), fd = -1;
  if (parent < 0) return;
  if (kind == 'd' || kind == 'D') {
    mkdirat(parent, leaf, 0700);
    fd = open_directory_itself(parent, leaf);
  } else if (kind == 'f' || kind == 'F') {
    fd = openat(parent, leaf, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && *argument && write(fd, argument, strlen(argument)) < 0) unlinkat(parent, leaf, 0);
  } else if (kind == 'L' && *argument) {
    symlinkat(argument, parent, leaf);
  } else if (kind == 'p' && mkfifoat(parent, leaf, 0600) == 0) {
    if (fchownat(parent, leaf, place.uid, place.gid, AT_SYMLINK_NOFOLLOW) == 0) fchmodat(parent, leaf, place.mode, 0);
  }
  if (fd >= 0) {
    set_place(fd, place);
    close(fd);
  }
  close(parent);
}

static bool is_root(const char *name) { return !*name || strcmp(name, "-") == 0 || strcmp(name, "0") == 0 || strcmp(name, "root") == 0; }

/* False: unknown user or group. Empty and "-" are root. */
static bool find_owner(const char *user, const char *group, struct place *place) {
  static struct account account;
  char spec[600];
  place->uid = place->gid = 0;
  if (is_root(user) && is_root(group)) return true;
  snprintf(spec, sizeof spec, "%.256s:%.256s", is_root(user) ? "0" : user, is_root(group) ? "0" : group);
  if (account_resolve(spec, &account) != NULL) return false;
  place->uid = account.uid;
  place->gid = account.gid;
  return true;
}

/* Reads an octal mode, which may follow marks of systemd (~ and :); `otherwise` if there is none. */
static mode_t read_mode(const char *text, mode_t otherwise) {
  text += strspn(text, "~:");
  char *end;
  unsigned long mode = strtoul(text, &end, 8);
  return end == text || *end || mode > 07777 ? otherwise : (mode_t)mode;
}

/* Reads one character or C escape and steps over it. Only escapes that occur are known. */
static char next_character(const char **from) {
  char c = *(*from)++;
  if (c != '\\' || !**from) return c;
  c = *(*from)++;
  return c == 'n' ? '\n' : c == 't' ? '\t' : c == 's' ? ' ' : c;
}

static void unescape(char *text) {
  const char *from = text;
  while (*from) *text++ = next_character(&from);
  *text = 0;
}

/* Takes the next field of a line: a word, or a text in quotes. */
static char *next_field(char **line) {
  char *field = *line + strspn(*line, " \t"), *to = field;
  const char *from = field;
  char quote = *from == '"' || *from == '\'' ? *from++ : 0;
  while (*from && (quote ? *from != quote : *from != ' ' && *from != '\t')) *to++ = next_character(&from);
  if (*from) from++;
  *to = 0;
  *line = (char *)from;
  return field;
}

/* Type, path, mode, user, group, age, argument. */
static void follow_line(char *line) {
  char *fields[FIELDS];
  for (int i = 0; i < FIELDS - 1; i++) fields[i] = next_field(&line);
  fields[FIELDS - 1] = line + strspn(line, " \t");
  const char *path = below_run(fields[1]);
  char *argument = fields[FIELDS - 1];
  struct place place;
  /* Tells users who log in that "the system is booting up"; a part of systemd, missing here, would have to remove it. */
  if (path && strcmp(path, "nologin") == 0) return;
  if (!path || strchr(argument, '%') || !find_owner(fields[3], fields[4], &place)) return;
  char kind = fields[0][0];
  if (kind == 'f' || kind == 'F') unescape(argument);
  place.mode = read_mode(fields[2], kind == 'd' || kind == 'D' ? 0755 : 0644);
  make(kind, path, place, strcmp(argument, "-") == 0 ? "" : argument);
}

static void follow_lines(char *text) {
  for (char *line; (line = strsep(&text, "\n"));) {
    line += strspn(line, " \t");
    if (*line && *line != '#') follow_line(line);
  }
}

static const char *value_of(const char *line, const char *key) {
  size_t size = strlen(key);
  return strncmp(line, key, size) == 0 && line[size] == '=' ? line + size + 1 : NULL;
}

static void follow_unit(char *text) {
  const char *user = "", *group = "", *mode = "", *value;
  char folders[1024] = "";
  for (char *line; (line = strsep(&text, "\n"));) {
    if ((value = value_of(line, "User"))) user = value;
    else if ((value = value_of(line, "Group"))) group = value;
    else if ((value = value_of(line, "RuntimeDirectoryMode"))) mode = value;
    else if ((value = value_of(line, "RuntimeDirectory"))) snprintf(folders, sizeof folders, "%s", value);
  }
  struct place place;
  if (!*folders || strchr(user, '%') || !find_owner(user, group, &place)) return;
  if (*user && !*group) { /* the user's own group */
    static struct account account;
    if (account_resolve(user, &account) == NULL) place.gid = account.gid;
  }
  place.mode = read_mode(mode, 0755);
  char *rest = folders;
  for (char *name; (name = strsep(&rest, " \t"));) {
    name[strcspn(name, ":")] = 0;
    if (*name && !strchr(name, '%')) make('d', name, place, "");
  }
}

void run_prepare(void) {
  static const char *const lines[] = {"/etc/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d"};
  static const char *const units[] = {"/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"};
  run_fd = open("/run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (run_fd < 0) return;
  mode_t before = umask(0);
  each_file(units, ".service", follow_unit);
  each_file(lines, ".conf", follow_lines);
  /* Debian's own. */
  struct place place = {.mode = 01777};
  make('d', "lock", place, "");
  if (find_owner("root", "utmp", &place)) {
    place.mode = 0664;
    make('f', "utmp", place, "");
  }
  umask(before);
  close(run_fd);
}
