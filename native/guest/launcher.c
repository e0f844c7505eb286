#include "launcher.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/wait.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>

#include "sys.h"
#include "wire.h"

#if defined(__x86_64__)
__asm__(
    ".text\n.globl sys_clone\n.type sys_clone,@function\nsys_clone:\n"
    "  and $-16, %rsi\n  sub $16, %rsi\n  mov %rdx, (%rsi)\n  mov %rcx, 8(%rsi)\n"
    "  mov %r8, %rdx\n  xor %r10d, %r10d\n  xor %r8d, %r8d\n  mov $56, %eax\n  syscall\n"
    "  test %eax, %eax\n  jnz 1f\n  xor %ebp, %ebp\n  pop %rax\n  pop %rdi\n  call *%rax\n  hlt\n"
    "1: ret\n.size sys_clone, .-sys_clone\n");
#else
__asm__(
    ".text\n.globl sys_clone\n.type sys_clone,%function\nsys_clone:\n"
    "  and x1, x1, #-16\n  stp x2, x3, [x1, #-16]!\n  mov x2, x4\n  mov x3, #0\n  mov x4, #0\n"
    "  mov x8, #220\n  svc #0\n  cbz x0, 1f\n  ret\n"
    "1: mov x29, #0\n  ldp x1, x0, [sp], #16\n  blr x1\n  brk #0\n.size sys_clone, .-sys_clone\n");
#endif

/* Descriptor of our own image, in a program that executes it. */
#define SELF_FD 3

/* Everything below runs beside init on init's memory: sys.h only, no libc call that could set errno or allocate. */

static void fail(struct launch *l, int stage, long error) {
  l->error = (int)-error;
  l->stage = stage;
  for (;;) sys_call(SYS_exit_group, 127);
}

/* Composes directory + "/" + name into l->candidate; false when too long. An empty directory is the current one. */
static bool compose(struct launch *l, const char *dir, size_t dir_size, const char *name) {
  size_t name_size = strlen(name);
  if (dir_size + name_size + 2 > LAUNCH_PATH) return false;
  char *at = l->candidate;
  memcpy(at, dir, dir_size);
  at += dir_size;
  if (dir_size > 0) *at++ = '/';
  memcpy(at, name, name_size + 1);
  return true;
}

#define HEAD_SIZE 512
#define INTERPRETERS_MAX 5 /* an interpreter may be a script itself */

static long read_at(int fd, void *to, size_t size, long offset) { return sys_call(SYS_pread64, fd, to, size, offset); }

/* Reads the interpreter's path in a script's first line into `out`. Returns its size, 0: none. */
static size_t script_interpreter(const char *head, long size, char *out) {
  long at = 2;
  size_t count = 0;
  while (at < size && (head[at] == ' ' || head[at] == '\t')) at++;
  while (at < size && head[at] != ' ' && head[at] != '\t' && head[at] != '\n' && head[at] != 0 && count < LAUNCH_REQUIRED - 1)
    out[count++] = head[at++];
  out[count] = 0;
  return count;
}

/* Reads the loader's path in a binary's program headers into `out`. Returns its size, 0: none. */
static size_t elf_loader(int fd, const char *head, char *out) {
  bool wide = head[EI_CLASS] == ELFCLASS64;
  const Elf64_Ehdr *wide_head = (const void *)head;
  const Elf32_Ehdr *narrow_head = (const void *)head;
  uint64_t at = wide ? wide_head->e_phoff : narrow_head->e_phoff;
  unsigned count = wide ? wide_head->e_phnum : narrow_head->e_phnum, size = wide ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
  for (unsigned i = 0; i < count && i < 64; i++, at += size) {
    union {
      Elf64_Phdr wide;
      Elf32_Phdr narrow;
    } h;
    if (read_at(fd, &h, size, (long)at) != (long)size) return 0;
    if ((wide ? h.wide.p_type : h.narrow.p_type) != PT_INTERP) continue;
    uint64_t length = wide ? h.wide.p_filesz : h.narrow.p_filesz, offset = wide ? h.wide.p_offset : h.narrow.p_offset;
    if (length < 2 || length > LAUNCH_REQUIRED || read_at(fd, out, length, (long)offset) != (long)length) return 0;
    out[length - 1] = 0;
    return strlen(out);
  }
  return 0;
}

/* Finds the missing interpreter or loader of an existing program, into l->required. */
static void find_required(struct launch *l, const char *path) {
  char head[HEAD_SIZE] __attribute__((aligned(8))), needed[LAUNCH_REQUIRED];
  for (int i = 0; i < INTERPRETERS_MAX; i++) {
    int fd = (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    if (fd < 0) return;
    long size = read_at(fd, head, sizeof head, 0);
    size_t found = 0;
    if (size > 2 && head[0] == '#' && head[1] == '!') found = script_interpreter(head, size, needed);
    else if (size >= (long)sizeof(Elf64_Ehdr) && memcmp(head, ELFMAG, SELFMAG) == 0) found = elf_loader(fd, head, needed);
    sys_call(SYS_close, fd);
    if (found == 0) return;
    if (sys_call(SYS_faccessat, AT_FDCWD, needed, 0) != 0) {
      memcpy(l->required, needed, found + 1);
      return;
    }
    memcpy(l->candidate, needed, found + 1);
    path = l->candidate;
  }
}

/* Executes the program at `path`. Returns the error to report. */
static long attempt(struct launch *l, const char *path) {
  long r = sys_call(SYS_execve, path, l->argv, l->envp);
  if ((r != -ENAMETOOLONG && r != -ENOENT) || sys_call(SYS_faccessat, AT_FDCWD, path, 1) != 0) return r;
  /* The file exists. For an argument or variable that is too long gVisor answers ENAMETOOLONG, Linux E2BIG. */
  if (r == -ENAMETOOLONG) return -E2BIG;
  find_required(l, path);
  return r;
}

/* execve with the search of execvp, but never a shell for a file without an interpreter line. Returns the error to report. */
static long search_and_exec(struct launch *l) {
  if (l->self) return sys_call(SYS_execveat, SELF_FD, "", l->argv, l->envp, AT_EMPTY_PATH);
  if (!l->path) return attempt(l, l->argv[0]);
  long denied = 0;
  for (const char *dir = l->path;;) {
    const char *end = strchrnul(dir, ':');
    if (compose(l, dir, (size_t)(end - dir), l->argv[0])) {
      /* On gVisor a failed access costs a fifth of a failed execve. */
      long r = sys_call(SYS_faccessat, AT_FDCWD, l->candidate, 1);
      if (r == 0) r = attempt(l, l->candidate);
      if (r == -EACCES) {
        denied = r;
      } else if (r != -ENOENT && r != -ENOTDIR && r != -ENAMETOOLONG && r != -ELOOP) {
        return r;
      }
    }
    if (*end == 0) break;
    dir = end + 1;
  }
  return denied && !l->required[0] ? denied : -ENOENT;
}

static void be_like_others_when_memory_ends(void) {
  long fd = sys_call(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY, 0);
  if (fd < 0) return;
  sys_call(SYS_write, fd, "0", 1);
  sys_call(SYS_close, fd);
}

static void program(void *argument) {
  struct launch *l = argument;
  if (l->spared) be_like_others_when_memory_ends();
  /* Only programs and their descendants count, not launchers, so that an exec can still start at the limit, to clean up. */
  if (l->procs_fd >= 0) sys_call(SYS_write, l->procs_fd, "0", 1);
  /* Close all other descriptors of init: a copy of another exec's pipe would delay its end of file. */
  for (int i = 0; i < 3; i++) sys_call(SYS_dup3, l->stdio[i], i, 0);
  if (l->self) sys_call(SYS_dup3, l->self_fd, SELF_FD, O_CLOEXEC);
  sys_call(SYS_close_range, l->self ? SELF_FD + 1 : 3, LAST_FD, 0);
  long r = sys_call(SYS_setsid);
  if (l->pty && (r = sys_call(SYS_ioctl, 0, TIOCSCTTY, 0)) < 0) fail(l, STAGE_PTY, r);
  if (l->switch_user) {
    if ((r = sys_call(SYS_setgroups, l->group_count, l->groups)) < 0) fail(l, STAGE_USER, r);
    if ((r = sys_call(SYS_setresgid, l->gid, l->gid, l->gid)) < 0) fail(l, STAGE_USER, r);
    if ((r = sys_call(SYS_setresuid, l->uid, l->uid, l->uid)) < 0) fail(l, STAGE_USER, r);
  }
  if (l->cwd) {
    if ((r = sys_call(SYS_chdir, l->cwd)) < 0) fail(l, STAGE_CWD, r);
  } else if (sys_call(SYS_chdir, l->home) < 0) {
    sys_call(SYS_chdir, "/");
  }
  uint64_t none = 0;
  sys_call(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, sizeof none);
  fail(l, STAGE_EXEC, search_and_exec(l));
}

static void set_name(const char *name) { sys_call(SYS_prctl, PR_SET_NAME, name, 0, 0, 0); }

static void notify(const struct launcher *k, struct launch *l) {
  while (sys_call(SYS_write, k->notify_fd, &l, sizeof l) == -EINTR) continue;
}

/* Runs the program to its end, with `hold` to the end of its whole tree. False if children are left. */
static bool carry_out(const struct launcher *k, struct launch *l) {
  /* The kernel stores the pid before the program runs: if the launcher is killed, init knows the program, or that none ran. */
  long pid = sys_clone(CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, l->program_stack + STACK_SIZE, program, l, &l->pid);
  launch_close_ends(l);
  if (pid < 0) {
    l->error = (int)-pid;
    l->stage = STAGE_FORK;
    return true;
  }
  /* Only now, so that the program does not wait for it. */
  set_name(l->name);
  if (l->notify_start && l->stage == STAGE_NONE) notify(k, l);
  for (bool wait = true;;) {
    int status = 0;
    long r = sys_call(SYS_wait4, -1, &status, wait ? __WALL : __WALL | WNOHANG, 0);
    if (r == pid) {
      l->status = status;
      l->main_done = true;
      if (!l->hold || l->stage != STAGE_NONE) wait = false;
      else notify(k, l);
    } else if (r == 0 || r == -ECHILD) {
      return r != 0;
    }
  }
}

static void keep(void *argument) {
  struct launcher *k = argument;
  sys_call(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  for (;;) {
    if (!__atomic_load_n(&k->called, __ATOMIC_ACQUIRE)) set_name(WAITING_NAME);
    while (!__atomic_load_n(&k->called, __ATOMIC_ACQUIRE)) sys_call(SYS_futex, &k->called, FUTEX_WAIT_PRIVATE, 0, NULL, 0, 0);
    struct launch *l = k->launch;
    k->called = 0;
    if (!l) break;
    if (!carry_out(k, l)) break;
    __atomic_store_n(&l->over, true, __ATOMIC_RELEASE);
    notify(k, l);
  }
  for (;;) sys_call(SYS_exit_group, 0);
}

void launch_close_ends(struct launch *l) {
  for (int i = 0; i < 3; i++) {
    int fd = l->ends[i];
    l->ends[i] = -1;
    if (fd >= 0) sys_call(SYS_close, fd);
  }
}

int launcher_start(struct launcher *k) { return (int)sys_clone(CLONE_VM | CLONE_FILES | SIGCHLD, k->stack + STACK_SIZE, keep, k, NULL); }

void launcher_call(struct launcher *k, struct launch *l) {
  k->launch = l;
  __atomic_store_n(&k->called, 1, __ATOMIC_RELEASE);
  sys_call(SYS_futex, &k->called, FUTEX_WAKE_PRIVATE, 1, NULL, 0, 0);
}
