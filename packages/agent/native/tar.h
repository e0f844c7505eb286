/* The archive programs: POSIX tar on stdin and stdout, run inside the guest as `cloche-guest tar-create|tar-extract DIR`. */
#ifndef CLOCHE_TAR_H
#define CLOCHE_TAR_H

#include <stdint.h>

#define TAR_BLOCK 512

struct tar_header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
  char magic[8], uname[32], gname[32], major[8], minor[8], prefix[155], padding[12];
};

/*
 * Both report on stderr in one line and by their exit status: 0 `done <entries> <skipped>`; 1 `failed <errno> <entry>`;
 * 2 `invalid <what is wrong with the archive>`.
 */
int tar_create(const char *directory);
int tar_extract(const char *directory);

#endif
