/* Terminals of programs: a pty of the guest's own devpts, its size, and signals to its foreground process group. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "exec.h"
#include "process-tree.h"

#define TTY_GROUP 5

/* Whether `directory` has this type: x/xterm, or 78/xterm as on file systems that ignore case. */
static bool has_type(const char *directory, const char *rest, const char *name) {
  static const char *const shapes[] = {"%s%s/%c/%s", "%s%s/%02x/%s"};
  char path[PATH_MAX];
  for (int i = 0; i < 2; i++)
    if (snprintf(path, sizeof path, shapes[i], directory, rest, (unsigned char)*name, name) < (int)sizeof path && access(path, F_OK) == 0)
      return true;
  return false;
}

static bool is_known(const char *home, const char *name) {
  return has_type(home, "/.terminfo", name) || has_type("/etc", "/terminfo", name) || has_type("/lib", "/terminfo", name) ||
         has_type("/usr/share", "/terminfo", name) || has_type("/usr/local/share", "/terminfo", name);
}

void terminal_make_known(char **envp, const char *home) {
  static char common[] = "TERM=xterm-256color";
  char **term = NULL;
  for (; *envp; envp++) {
    if (strncmp(*envp, "TERMINFO", 8) == 0) return; /* a database of the user's own */
    if (strncmp(*envp, "TERM=", 5) == 0) term = envp;
  }
  if (!term || !(*term)[5] || strchr(*term, '/')) return;
  /* A tree without xterm-256color has no database, and no program that reads one. */
  if (!is_known(home, *term + 5) && is_known(home, common + 5)) *term = common;
}

/* Makes an erase remove a UTF-8 character and not a byte, as terminals do today. */
static void expect_utf8(int slave) {
  struct termios modes;
  if (tcgetattr(slave, &modes) < 0) return;
  modes.c_iflag |= IUTF8;
  tcsetattr(slave, TCSANOW, &modes);
}

bool terminal_open(struct init *in, struct exec *e, const struct winsize *size, int *slave) {
  int master = openat(in->pts_fd, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (master < 0) return false;
  int locked = 0;
  unsigned number;
  char name[16];
  *slave = -1;
  if (ioctl(master, TIOCSPTLCK, &locked) == 0 && ioctl(master, TIOCGPTN, &number) == 0) {
    snprintf(name, sizeof name, "%u", number);
    *slave = openat(in->pts_fd, name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  }
  int input = *slave < 0 ? -1 : fcntl(master, F_DUPFD_CLOEXEC, 0);
  if (input < 0) {
    int error = errno;
    close(master);
    if (*slave >= 0) close(*slave);
    errno = error;
    return false;
  }
  ioctl(master, TIOCSWINSZ, size);
  expect_utf8(*slave);
  /* If this fails, only `mesg` does not work. */
  (void)!fchown(*slave, e->launch->uid, TTY_GROUP);
  e->outputs[0].watch.fd = master;
  e->input.fd = input;
  return true;
}

void terminal_resize(struct exec *e, const struct winsize *size) {
  if (e->flags & SPAWN_PTY && e->outputs[0].watch.fd >= 0) ioctl(e->outputs[0].watch.fd, TIOCSWINSZ, size);
}

/* Makes the terminal send the signal, as its key would. False if the key sends no signal now. */
static bool press_key(int master, int signal) {
  struct termios modes;
  int key = signal == SIGINT ? VINTR : signal == SIGQUIT ? VQUIT : signal == SIGTSTP ? VSUSP : -1;
  if (key < 0 || tcgetattr(master, &modes) < 0 || !(modes.c_lflag & ISIG) || modes.c_cc[key] == _POSIX_VDISABLE) return false;
  return write(master, &modes.c_cc[key], 1) == 1;
}

/* The newest process group of the session that is not stopped; the leader's own if there is no other. */
static pid_t newest_group(int proc_fd, pid_t session) {
  struct process_list all = processes_read(proc_fd);
  pid_t newest = session;
  for (size_t i = 0; i < all.count; i++) {
    const struct process *p = &all.items[i];
    if (p->session == session && !p->dead && !p->stopped && p->group > newest) newest = p->group;
  }
  free(all.items);
  return newest;
}

void terminal_signal(struct init *in, struct exec *e, int signal) {
  int master = e->outputs[0].watch.fd;
  pid_t group = 0;
  if (master < 0) return;
  if (ioctl(master, TIOCGPGRP, &group) == 0 && group > 1) {
    kill(-group, signal);
    return;
  }
  /* gVisor reports the foreground group only to processes of the session. */
  if (!press_key(master, signal)) kill(-newest_group(in->proc_fd, e->launch->pid), signal);
}
