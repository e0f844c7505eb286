#define _GNU_SOURCE
#include "snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk.h"
#include "report.h"
#include "sentry.h"

struct disk_clone {
  pthread_t thread;
  int mount_fd;
  const char *disk, *destination;
  int clone, failed;
  long clone_us, ended_us;
};

static void *clone_disk(void *argument) {
  struct disk_clone *work = argument;
  work->failed = disk_sync_clone(work->mount_fd, work->disk, work->destination, &work->clone, &work->clone_us);
  work->ended_us = now_us();
  return NULL;
}

static int sync_directory(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  int failed = fsync(fd);
  close(fd);
  return failed;
}

static int open_images(const char *image_dir, int flags, int *images) {
  /* In the order of `runsc checkpoint`: kernel state, page metadata, pages. */
  const char *names[3] = {"checkpoint.img", "pages_meta.img", "pages.img"};
  char path[4096];
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/%s", image_dir, names[i]);
    images[i] = open(path, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (images[i] < 0) return complain("image file"), -1;
  }
  return 0;
}

/* Detaches from the service first: if the service dies, and its pipe with it, this process still resumes the machine. */
static int pause_machine(const char *socket_path, const char *marker) {
  setsid();
  signal(SIGPIPE, SIG_IGN);
  int marker_fd = open(marker, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (marker_fd < 0 || flock(marker_fd, LOCK_EX | LOCK_NB)) return complain("marker"), -1;
  if (!sentry_method(socket_path, "containerManager.Pause", "null")) return 0;
  unlink(marker);
  return -1;
}

static int resume_machine(const char *socket_path, const char *marker) {
  if (sentry_method(socket_path, "containerManager.Resume", "null")) return -1;
  unlink(marker);
  return 0;
}

int checkpoint(int argc, char **argv) {
  if (argc != 5) return complain("usage: checkpoint SOCKET MOUNT_POINT DISK CLONE MARKER"), 2;
  const char *socket_path = argv[0], *marker = argv[4];
  int mount_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC), clone;
  if (mount_fd < 0) return complain("mount point"), 1;
  long paused_at = now_us(), clone_us = 0;
  if (pause_machine(socket_path, marker)) return 1;
  int failed = disk_sync_clone(mount_fd, argv[2], argv[3], &clone, &clone_us);
  failed |= resume_machine(socket_path, marker);
  if (failed) return 1;
  printf("{\"pauseUs\":%ld,\"cloneUs\":%ld}\n", now_us() - paused_at, clone_us);
  return 0;
}

int snapshot(int argc, char **argv) {
  if (argc < 6) return complain("usage: snapshot SOCKET IMAGE_DIR MOUNT_POINT DISK CLONE MARKER"), 2;
  const char *socket_path = argv[0], *image_dir = argv[1], *marker = argv[5];
  int stop = 0, template = 0;
  for (int i = 6; i < argc; i++) {
    if (!strcmp(argv[i], "--stop")) stop = 1;
    else if (!strcmp(argv[i], "--template")) template = 1;
    else return complain("unknown flag %s", argv[i]), 2;
  }
  int mount_fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (mount_fd < 0) return complain("mount point"), 1;
  int images[3];
  if (open_images(image_dir, O_RDWR | O_CREAT | O_TRUNC, images)) return 1;
  /* Write most of the dirty pages before the pause. */
  if (syncfs(mount_fd)) complain("syncing the disk");
  struct disk_clone disk_clone = {.mount_fd = mount_fd, .disk = argv[3], .destination = argv[4], .clone = -1};
  long paused_at = now_us();
  if (pause_machine(socket_path, marker)) return 1;
  /*
   * The sentry holds no dirty pages of the disk (its bind mounts are shared) and no program runs, so the disk can be cloned
   * while the memory is saved.
   */
  long began = now_us();
  int failed = pthread_create(&disk_clone.thread, NULL, clone_disk, &disk_clone);
  if (failed) {
    errno = failed;
    complain("thread");
  } else {
    failed = sentry_save(socket_path, images, template);
    pthread_join(disk_clone.thread, NULL);
  }
  failed |= disk_clone.failed;
  long saved = now_us();
  if (!failed && stop) {
    for (int i = 0; i < 3; i++) failed |= fsync(images[i]);
    failed |= fsync(disk_clone.clone) | sync_directory(image_dir);
    if (failed) complain("writing the image out");
  }
  if (failed || !stop) failed |= resume_machine(socket_path, marker);
  if (failed) return 1;
  printf("{\"pauseUs\":%ld,\"saveUs\":%ld,\"diskUs\":%ld,\"cloneUs\":%ld}\n", now_us() - paused_at, saved - began,
         disk_clone.ended_us - began, disk_clone.clone_us);
  return 0;
}

int pause_command(const char *socket_path, const char *marker) { return pause_machine(socket_path, marker) ? 1 : 0; }

int resume(const char *socket_path, const char *marker) {
  int fd = open(marker, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : (complain("marker"), 1);
  struct stat status;
  if (flock(fd, LOCK_EX) || fstat(fd, &status)) return complain("marker"), 1;
  if (status.st_nlink == 0) return 0;
  return resume_machine(socket_path, marker) ? 1 : 0;
}

int save(const char *socket_path, const char *image_dir) {
  int images[3];
  if (open_images(image_dir, O_RDWR | O_CREAT | O_TRUNC, images)) return 1;
  if (sentry_method(socket_path, "containerManager.Pause", "null")) return 1;
  int failed = sentry_save(socket_path, images, 1);
  for (int i = 0; i < 3; i++) failed |= fsync(images[i]);
  return failed || sync_directory(image_dir) ? 1 : 0;
}
