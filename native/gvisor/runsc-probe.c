/*
 * The program in the sandboxes of the probe (packages/host/src/drivers/gvisor/probe.ts): static, with no dependencies.
 *
 *   runsc-probe DIR
 *       Writes into DIR: `setuid`, which has "0" if the set-uid copy of this program, DIR/setuid-probe, has root's rights when
 *       another user runs it; `ticks`, which grows by a byte every 10 ms; and, once DIR/ask exists, `answer`: the content of a
 *       file that was deleted at the beginning and is held open.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534
#define TICK_NS 10000000L

static int write_file(const char *name, int flags, const char *text, size_t length) {
  int fd = open(name, O_WRONLY | O_CREAT | flags, 0644);
  if (fd < 0) return -1;
  ssize_t wrote = write(fd, text, length);
  close(fd);
  return wrote == (ssize_t)length ? 0 : -1;
}

static void try_setuid(void) {
  int file = open("setuid", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(file, 1);
    if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)) _exit(1);
    execl("./setuid-probe", "setuid-probe", (char *)NULL);
    _exit(127);
  }
  close(file);
  waitpid(pid, NULL, 0);
}

int main(int argc, char **argv) {
  if (argc < 2) return printf("%d", (int)geteuid()) < 0;
  static const char text[] = "held";
  if (chdir(argv[1])) return 1;
  int held = open("held", O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (held < 0 || write(held, text, sizeof text - 1) < 0 || unlink("held")) return 1;
  try_setuid();
  for (off_t ticks = 1;; ticks++) {
    /* By name, not held open: a file open during the save must exist at the restore, and this one does not. */
    if (truncate("ticks", ticks)) write_file("ticks", O_TRUNC, "", 0);
    char read_back[sizeof text] = "";
    if (access("ask", F_OK) == 0 && pread(held, read_back, sizeof text - 1, 0) >= 0)
      write_file("answer", O_TRUNC, read_back, strlen(read_back));
    nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
  }
}
