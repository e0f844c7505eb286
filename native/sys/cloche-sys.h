/* Shared by the parts of cloche-sys. main.c describes the program and its protocol. */
#ifndef CLOCHE_SYS_H
#define CLOCHE_SYS_H
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

/* The answer to one request: errno 0 and a payload, or an errno and what failed. */
struct answer {
  int error;
  char text[8192];
};

/* Fills the answer with an error and returns -1. */
int fail(struct answer *answer, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
int done(struct answer *answer, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t now_us(void);

/* disk.c: every operation takes its arguments as strings, as on the wire. */
int disk_clone(struct answer *answer, const char *source, const char *target, const char *durable);
int disk_sync(struct answer *answer, const char *mount_point);
int disk_attach(struct answer *answer, const char *image, const char *mount_point, const char *flags, const char *options,
                const char *direct_io);
int disk_sync_file(struct answer *answer, const char *path);
int disk_detach(struct answer *answer, const char *mount_point, const char *lazy);
int disk_replace(struct answer *answer, const char *from, const char *to);
int disk_trim(struct answer *answer, const char *mount_point);
int disk_extents(struct answer *answer, const char *file);

/* chunks.c */
int disk_chunk_map(struct answer *answer, const char *image, const char *base, const char *out, const char *bytes);

/* process.c */
void process_start_reaper(void);
int process_exec(struct answer *answer, char **arguments, int count);

/* network.c */
int netns_add(struct answer *answer, const char *path);
int netns_delete(struct answer *answer, const char *path);
int slot_link(struct answer *answer, char **of);
int slot_prepare(struct answer *answer, const char *namespace, const char *interface, const char *address, const char *gateway);
int set_elements(struct answer *answer, char **arguments, int count);
int slot_unlink(struct answer *answer, const char *router, const char *interface, const char *table, const char *set);
#endif
