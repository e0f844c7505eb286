/*
 * QEMU before 9.0 opens a memory file for writing even for a private mapping. Clones share their template's file and must not be
 * able to change it, so it belongs to root and is read-only for them. This library, preloaded into QEMU, opens that one path for
 * reading, which is enough for a private mapping.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

static const char shared_memory[] = "/vm/base-memory";

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);

static int flags_for(const char *path, int flags) { return strcmp(path, shared_memory) == 0 ? (flags & ~O_ACCMODE) | O_RDONLY : flags; }

#define WRAP(name)                                                              \
  int name(const char *path, int flags, ...) {                                  \
    static int (*real)(const char *, int, ...);                                 \
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
    mode_t mode = 0;                                                            \
    if (flags & (O_CREAT | O_TMPFILE)) {                                        \
      va_list args;                                                             \
      va_start(args, flags);                                                    \
      mode = va_arg(args, mode_t);                                              \
      va_end(args);                                                             \
    }                                                                           \
    return real(path, flags_for(path, flags), mode);                            \
  }
WRAP(open)
WRAP(open64)

/* Called by programs built with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
