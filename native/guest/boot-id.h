/* The boot id of the users' tree, where it is not the kernel's. */
#ifndef CLOCHE_BOOT_ID_H
#define CLOCHE_BOOT_ID_H

/*
 * Shows `id` as /proc/sys/kernel/random/boot_id. The kernel's own is part of the memory from which a clone is made. Call it in the
 * users' namespaces. Returns 0 or errno.
 */
int set_boot_id(const char *id);

#endif
