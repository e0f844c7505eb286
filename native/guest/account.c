#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The whole file as a string, or NULL. Never blocks: a FIFO or device in its place counts as no file. */
static char *read_file(const char *path) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return NULL;
  struct stat st;
  char *text = NULL;
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= ACCOUNT_FILE_MAX) {
    text = malloc((size_t)st.st_size + 1);
    size_t size = 0;
    while (text && size < (size_t)st.st_size) {
      ssize_t n = read(fd, text + size, (size_t)st.st_size - size);
      if (n <= 0) break;
      size += (size_t)n;
    }
    if (text) text[size] = 0;
  }
  close(fd);
  return text;
}

/* Splits one line at colons into at most `max` fields (modifying it); returns how many. */
static int split(char *line, char **fields, int max) {
  int count = 0;
  while (line && count < max) {
    fields[count++] = line;
    line = strchr(line, ':');
    if (line) *line++ = 0;
  }
  return count;
}

static bool number(const char *text, unsigned *out) {
  if (*text == 0 || strlen(text) > 10 || strspn(text, "0123456789") != strlen(text)) return false;
  unsigned long long value = strtoull(text, NULL, 10);
  if (value >= 0xffffffffull) return false;
  *out = (unsigned)value;
  return true;
}

/* Finds the line whose field `by` (0: name, 2: number) equals `key`; its fields point into a copy in *line, which the caller frees. */
static int find_line(const char *text, int by, const char *key, char **line, char **fields, int max) {
  unsigned wanted = 0;
  if (by == 2 && !number(key, &wanted)) return 0;
  for (const char *at = text; at && *at;) {
    size_t size = strcspn(at, "\n");
    char *copy = strndup(at, size);
    if (!copy) return 0;
    int count = split(copy, fields, max);
    unsigned value;
    if (count > 2 && (by == 0 ? strcmp(fields[0], key) == 0 : number(fields[2], &value) && value == wanted)) {
      *line = copy;
      return count;
    }
    free(copy);
    at += size;
    if (*at == '\n') at++;
  }
  return 0;
}

static void copy_field(char *out, size_t room, const char *text) { snprintf(out, room, "%s", text); }

static void add_group(struct account *a, gid_t gid) {
  for (int i = 0; i < a->group_count; i++)
    if (a->groups[i] == gid) return;
  if (a->group_count < GROUPS_MAX) a->groups[a->group_count++] = gid;
}

/* Supplementary groups: every group whose member list names the user. */
static void add_memberships(struct account *a, const char *text) {
  for (const char *at = text; at && *at;) {
    size_t size = strcspn(at, "\n");
    char *copy = strndup(at, size), *fields[4];
    unsigned gid;
    if (copy && split(copy, fields, 4) == 4 && number(fields[2], &gid)) {
      char *rest = fields[3];
      for (char *member; (member = strsep(&rest, ","));)
        if (strcmp(member, a->name) == 0) add_group(a, gid);
    }
    free(copy);
    at += size;
    if (*at == '\n') at++;
  }
}

static bool resolve_group(const char *spec, gid_t *gid) {
  char *text = read_file("/etc/group"), *line = NULL, *fields[4];
  bool found = find_line(text, 0, spec, &line, fields, 4) > 2 && number(fields[2], gid);
  free(line);
  free(text);
  return found || number(spec, gid);
}

const char *account_resolve(const char *spec, struct account *a) {
  memset(a, 0, sizeof *a);
  if (*spec == 0 || strcmp(spec, "root") == 0 || strcmp(spec, "0") == 0) {
    /* No look-up: root works in a tree without /etc/passwd, and it is the fast path. */
    copy_field(a->name, sizeof a->name, "root");
    copy_field(a->home, sizeof a->home, "/root");
    a->group_count = 1;
    return NULL;
  }
  char user[256];
  size_t user_size = strcspn(spec, ":");
  const char *group = spec[user_size] == ':' ? spec + user_size + 1 : NULL;
  if (user_size == 0 || user_size >= sizeof user) return "user";
  memcpy(user, spec, user_size);
  user[user_size] = 0;

  char *text = read_file("/etc/passwd"), *line = NULL, *fields[7];
  int count = find_line(text, 0, user, &line, fields, 7);
  unsigned uid = 0, gid = 0;
  if (count == 0 && number(user, &uid)) count = find_line(text, 2, user, &line, fields, 7);
  bool known = count > 3 && number(fields[2], &uid) && number(fields[3], &gid);
  bool numeric = !known && number(user, &uid);
  if (known) {
    copy_field(a->name, sizeof a->name, fields[0]);
    copy_field(a->home, sizeof a->home, count > 5 && fields[5][0] ? fields[5] : "/");
    if (count > 6) copy_field(a->shell, sizeof a->shell, fields[6]);
  } else {
    copy_field(a->name, sizeof a->name, user);
    copy_field(a->home, sizeof a->home, uid == 0 ? "/root" : "/");
    gid = 0; /* a number without an account belongs to group 0, as in OCI images */
  }
  free(line);
  free(text);
  if (!known && !numeric) return "user";
  a->uid = uid;
  a->gid = gid;
  if (group && !resolve_group(group, &a->gid)) return "group";
  add_group(a, a->gid);
  if (!group && known) {
    text = read_file("/etc/group");
    add_memberships(a, text);
    free(text);
  }
  return NULL;
}

void account_find_shell(struct account *a) {
  if (a->shell[0]) return;
  char *text = a->uid == 0 ? read_file("/etc/passwd") : NULL, *line = NULL, *fields[7];
  int count = find_line(text, 0, "root", &line, fields, 7);
  copy_field(a->shell, sizeof a->shell, count > 6 && fields[6][0] ? fields[6] : "/bin/sh");
  free(line);
  free(text);
}

void account_name(struct account_names *names, bool group, unsigned id, char out[64]) {
  if (!names->loaded) {
    names->passwd = read_file("/etc/passwd");
    names->group = read_file("/etc/group");
    names->loaded = true;
  }
  /* Most entries of a directory have the same owner. */
  struct account_name_memory *last = &names->last[group];
  if (last->known && last->id == id) {
    memcpy(out, last->name, 64);
    return;
  }
  char key[16], *line = NULL, *fields[4];
  snprintf(key, sizeof key, "%u", id);
  if (find_line(group ? names->group : names->passwd, 2, key, &line, fields, 4)) snprintf(out, 64, "%.63s", fields[0]);
  else snprintf(out, 64, "%s", key);
  free(line);
  last->known = true;
  last->id = id;
  memcpy(last->name, out, 64);
}

void account_names_free(struct account_names *names) {
  free(names->passwd);
  free(names->group);
  memset(names, 0, sizeof *names);
}
