#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "account.h"
#include "exec.h"

#define VECTOR_MAX 65536 /* arguments or variables of one exec */

static const char *find_variable(char **envp, const char *name) {
  size_t size = strlen(name);
  for (; *envp; envp++)
    if (strncmp(*envp, name, size) == 0 && (*envp)[size] == '=') return *envp + size + 1;
  return NULL;
}

/* Appends NAME=value when the request did not set it. */
static void default_variable(struct bytes *extra, char **envp, size_t *at, const char *name, const char *value) {
  if (*value == 0 || find_variable(envp, name)) return;
  envp[(*at)++] = (char *)(uintptr_t)extra->size; /* an offset until `extra` stops moving */
  put_raw(extra, name, strlen(name));
  put_raw(extra, "=", 1);
  put_raw(extra, value, strlen(value) + 1);
}

int exec_read_request(struct exec *e, struct cursor *c, int *error, const char **text) {
  struct launch *l = e->launch;
  char *user = take_string(c), *cwd = take_string(c);
  uint32_t argc = take_u32(c);
  *error = E2BIG;
  *text = "arguments";
  if (argc > VECTOR_MAX) return STAGE_REQUEST;
  char **argv = calloc((size_t)argc + 1, sizeof *argv);
  if (!argv) _exit(70);
  e->vectors = argv;
  for (uint32_t i = 0; i < argc; i++) argv[i] = take_string(c);
  uint32_t envc = take_u32(c);
  *text = "environment";
  if (envc > VECTOR_MAX) return STAGE_REQUEST;
  e->vectors = realloc(argv, ((size_t)argc + envc + 8) * sizeof *argv);
  if (!e->vectors) _exit(70);
  argv = e->vectors;
  char **envp = argv + argc + 1;
  for (uint32_t i = 0; i < envc; i++) envp[i] = take_string(c);
  envp[envc] = NULL;
  *error = EINVAL;
  *text = "request";
  if (c->bad || argc == 0) return STAGE_REQUEST;

  struct account account;
  const char *unknown = account_resolve(user, &account);
  if (unknown) {
    *error = ENOENT;
    *text = unknown;
    return STAGE_USER;
  }
  account_find_shell(&account);
  l->uid = account.uid;
  l->gid = account.gid;
  l->group_count = account.group_count;
  memcpy(l->groups, account.groups, sizeof account.groups);
  l->switch_user = *user != 0;

  struct bytes extra = {0};
  size_t at = envc;
  default_variable(&extra, envp, &at, "HOME", account.home);
  default_variable(&extra, envp, &at, "USER", account.name);
  default_variable(&extra, envp, &at, "LOGNAME", account.name);
  default_variable(&extra, envp, &at, "SHELL", account.shell);
  size_t home_at = extra.size;
  put_raw(&extra, account.home, strlen(account.home) + 1);
  /* The payload owns every string: keep the new ones with it. */
  size_t old = (size_t)(c->end - e->payload);
  uint8_t *whole = malloc(old + extra.size);
  if (!whole) _exit(70);
  memcpy(whole, e->payload, old);
  memcpy(whole + old, extra.data, extra.size);
  ptrdiff_t moved = whole - e->payload;
  for (uint32_t i = 0; i < argc; i++) argv[i] += moved;
  for (uint32_t i = 0; i < envc; i++) envp[i] += moved;
  for (size_t i = envc; i < at; i++) envp[i] = (char *)whole + old + (uintptr_t)envp[i];
  envp[at] = NULL;
  if (e->flags & SPAWN_PTY) terminal_make_known(envp, account.home);
  cwd += moved;
  free(e->payload);
  free(extra.data);
  e->payload = whole;
  l->argv = argv;
  l->envp = envp;
  l->home = (char *)whole + old + home_at;
  l->cwd = *cwd ? cwd : NULL;
  l->self = e->flags & SPAWN_SELF;
  if (!strchr(argv[0], '/')) {
    l->path = find_variable(envp, "PATH");
    if (!l->path) l->path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  }
  return STAGE_NONE;
}
