/* Disk images: clones, snapshots of mounted file systems, loop devices and mounts. */
#include "cloche-sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define LOOP_TRIES 100
#define SYNC_ROUNDS 4
#define SYNC_SHORT_US 20000

/* Opens `<target>.new`, empty. The clone gets its name once it is complete. */
static int open_new(struct answer *answer, const char *target, char path[PATH_MAX]) {
  if (snprintf(path, PATH_MAX, "%s.new", target) >= PATH_MAX) return fail(answer, ENAMETOOLONG, "%s", target);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) return fail(answer, errno, "creating %s", path);
  return fd;
}

static int publish(struct answer *answer, const char *path, const char *target) {
  if (rename(path, target) != 0) return fail(answer, errno, "renaming %s", path);
  return 0;
}

static void sync_name(const char *path) {
  char dir[PATH_MAX];
  snprintf(dir, sizeof dir, "%s", path);
  char *slash = strrchr(dir, '/');
  if (slash) *slash = 0;
  int parent = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return;
  fsync(parent);
  close(parent);
}

/* Renames the file to `target`; if `durable`, makes it durable before, and its name after. */
static int publish_clone(struct answer *answer, int fd, const char *path, const char *target, int durable) {
  if (durable && fsync(fd) != 0) return fail(answer, errno, "fsync of %s", path);
  if (publish(answer, path, target) != 0) return -1;
  if (durable) sync_name(target);
  return 0;
}

/* Makes a file and its name durable. */
int disk_sync_file(struct answer *answer, const char *path) {
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return fail(answer, errno, "opening %s", path);
  int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  if (error) return fail(answer, error, "fsync of %s", path);
  sync_name(path);
  return done(answer, "ok");
}

int disk_clone(struct answer *answer, const char *source, const char *target, const char *durable) {
  char path[PATH_MAX];
  int result = -1;
  int source_fd = open(source, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (source_fd < 0) return fail(answer, errno, "opening %s", source);
  int target_fd = open_new(answer, target, path);
  if (target_fd < 0) goto out;
  if (ioctl(target_fd, FICLONE, source_fd) != 0) fail(answer, errno, "reflink of %s to %s", source, path);
  else result = publish_clone(answer, target_fd, path, target, strcmp(durable, "1") == 0);
  if (result != 0) unlink(path);
  close(target_fd);
out:
  close(source_fd);
  return result == 0 ? done(answer, "ok") : -1;
}

/* Writes dirty pages until few are left; pages dirtied meanwhile take another round. */
int disk_sync(struct answer *answer, const char *mount_point) {
  int fd = open(mount_point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fail(answer, errno, "opening %s", mount_point);
  int failed = 0;
  for (int round = 0; round < SYNC_ROUNDS && !failed; round++) {
    uint64_t start = now_us();
    failed = syncfs(fd) != 0;
    if (now_us() - start < SYNC_SHORT_US) break;
  }
  int error = errno;
  close(fd);
  return failed ? fail(answer, error, "syncing %s", mount_point) : done(answer, "ok");
}

static int mount_ioctl(struct answer *answer, const char *mount_point, unsigned long request, void *argument, int harmless,
                       const char *what) {
  int fd = open(mount_point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fail(answer, errno, "opening %s", mount_point);
  int result = ioctl(fd, request, argument);
  int error = errno;
  close(fd);
  if (result != 0 && error != harmless) return fail(answer, error, "%s %s", what, mount_point);
  return done(answer, "ok");
}

int disk_trim(struct answer *answer, const char *mount_point) {
  struct fstrim_range range = {.start = 0, .len = UINT64_MAX, .minlen = 0};
  if (mount_ioctl(answer, mount_point, FITRIM, &range, EOPNOTSUPP, "trimming") != 0) return -1;
  return done(answer, "%llu", (unsigned long long)range.len);
}

/* 1: a loop device is mounted there, and `backing` is its file. 0: nothing is mounted. -1: something else is. */
static int mounted_image(const char *mount_point, char backing[PATH_MAX], char device[64]) {
  struct stat here, above;
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/..", mount_point);
  if (stat(mount_point, &here) != 0 || stat(path, &above) != 0) return 0;
  if (here.st_dev == above.st_dev) return 0;
  snprintf(path, sizeof path, "/sys/dev/block/%u:%u/loop/backing_file", major(here.st_dev), minor(here.st_dev));
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  char *line = fgets(backing, PATH_MAX, file);
  fclose(file);
  if (!line) return -1;
  backing[strcspn(backing, "\n")] = 0;
  snprintf(device, 64, "/dev/loop%u", minor(here.st_dev));
  return 1;
}

/* Configures a free loop device for `image_fd`. Others may take the same number first; LOOP_CONFIGURE decides. */
static int configure_loop(struct answer *answer, int image_fd, const char *image, int direct_io, char device[64]) {
  int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (control < 0) return fail(answer, errno, "opening /dev/loop-control");
  for (int tries = 0; tries < LOOP_TRIES; tries++) {
    int number = ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) break;
    snprintf(device, 64, "/dev/loop%d", number);
    if (access(device, F_OK) != 0) mknod(device, S_IFBLK | 0600, makedev(7, (unsigned)number));
    int loop = open(device, O_RDWR | O_CLOEXEC);
    if (loop < 0) continue;
    struct loop_config config;
    memset(&config, 0, sizeof config);
    config.fd = (uint32_t)image_fd;
    /* ext4's block size, so that direct I/O is aligned for any sector size of the disk. */
    config.block_size = 4096;
    /* AUTOCLEAR: the kernel frees the device when its last user ends. */
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | (direct_io ? LO_FLAGS_DIRECT_IO : 0);
    snprintf((char *)config.info.lo_file_name, LO_NAME_SIZE, "%s", image);
    if (ioctl(loop, LOOP_CONFIGURE, &config) == 0) {
      close(control);
      return loop;
    }
    int error = errno;
    close(loop);
    if (error != EBUSY) {
      close(control);
      return fail(answer, error, "attaching %s to %s", image, device);
    }
  }
  close(control);
  return fail(answer, EBUSY, "no free loop device for %s", image);
}

/* `flags`: decimal, for mount(2). `options`: of ext4. Repeatable: succeeds if already attached. */
int disk_attach(struct answer *answer, const char *image, const char *mount_point, const char *flags, const char *options,
                const char *direct_io) {
  char backing[PATH_MAX], device[64];
  int mounted = mounted_image(mount_point, backing, device);
  if (mounted == 1 && strcmp(backing, image) == 0) return done(answer, "%s", device);
  if (mounted != 0) return fail(answer, EEXIST, "%s has %s mounted", mount_point, mounted == 1 ? backing : "something else");
  int image_fd = open(image, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (image_fd < 0) return fail(answer, errno, "opening %s", image);
  /* The loop device keeps this open file and its lock, so that an image is never attached twice. */
  if (flock(image_fd, LOCK_EX | LOCK_NB) != 0) {
    int error = errno;
    close(image_fd);
    return fail(answer, error == EWOULDBLOCK ? EBUSY : error, "%s is attached already", image);
  }
  int loop = configure_loop(answer, image_fd, image, strcmp(direct_io, "1") == 0, device);
  close(image_fd);
  if (loop < 0) return -1;
  int result = mount(device, mount_point, "ext4", strtoul(flags, NULL, 10), options);
  int error = errno;
  close(loop);
  if (result != 0) return fail(answer, error, "mounting %s on %s", image, mount_point);
  return done(answer, "%s", device);
}

int disk_detach(struct answer *answer, const char *mount_point, const char *lazy) {
  int count = 0;
  while (umount2(mount_point, UMOUNT_NOFOLLOW | (strcmp(lazy, "1") == 0 ? MNT_DETACH : 0)) == 0) count++;
  /* EINVAL: nothing is mounted there. */
  if (errno != EINVAL && errno != ENOENT) return fail(answer, errno, "unmounting %s", mount_point);
  return done(answer, "%d", count);
}

/* Puts what is mounted at `from` in the place of what is mounted at `to`, which its users keep until they end. */
int disk_replace(struct answer *answer, const char *from, const char *to) {
  if (disk_detach(answer, to, "1") != 0) return -1;
  /* Not MS_MOVE: the mounts are shared with the machine. */
  if (mount(from, to, NULL, MS_BIND, NULL) != 0) return fail(answer, errno, "mounting %s on %s", from, to);
  return disk_detach(answer, from, "0");
}

/* Extents, allocated bytes, and the bytes of them that no other file shares. */
int disk_extents(struct answer *answer, const char *file) {
  enum { BATCH = 512 };
  uint64_t start = 0, count = 0, allocated = 0, exclusive = 0;
  struct fiemap *map = calloc(1, sizeof *map + BATCH * sizeof(struct fiemap_extent));
  int fd = open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || !map) {
    int error = errno;
    free(map);
    return fail(answer, error, "opening %s", file);
  }
  for (int last = 0; !last;) {
    map->fm_start = start;
    map->fm_length = FIEMAP_MAX_OFFSET - start;
    map->fm_flags = FIEMAP_FLAG_SYNC;
    map->fm_extent_count = BATCH;
    if (ioctl(fd, FS_IOC_FIEMAP, map) != 0) {
      int error = errno;
      close(fd);
      free(map);
      return fail(answer, error, "extents of %s", file);
    }
    if (map->fm_mapped_extents == 0) break;
    for (uint32_t i = 0; i < map->fm_mapped_extents; i++) {
      const struct fiemap_extent *extent = &map->fm_extents[i];
      count++;
      allocated += extent->fe_length;
      if (!(extent->fe_flags & FIEMAP_EXTENT_SHARED)) exclusive += extent->fe_length;
      if (extent->fe_flags & FIEMAP_EXTENT_LAST) last = 1;
      start = extent->fe_logical + extent->fe_length;
    }
  }
  close(fd);
  free(map);
  return done(answer, "%llu %llu %llu", (unsigned long long)count, (unsigned long long)allocated, (unsigned long long)exclusive);
}
