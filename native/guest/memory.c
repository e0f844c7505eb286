#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "candidates.h"
#include "clock.h"
#include "guest.h"
#include "kernel-memory.h"
#include "process-tree.h"
#include "sysv.h"

#define MIB (1ull << 20)
/* The agent's memory does not count against the promise: at most this much in use at the start, and this much growth since. */
#define AGENT_START_MAX (96 * MIB)
#define AGENT_GROWTH_MAX (96 * MIB)
/* The machine's limit is at least twice this above ours, and 256 MiB more for each CPU (the host's gvisor/unit-limits.ts). */
#define MARGIN_BYTES (64 * MIB)
/* Kernel memory that every machine needs. More counts as used by programs, and may be half of the promise at most. */
#define KERNEL_FREE (64 * MIB)
/* Time for the host to make the kernel collect unused memory; it looks five times a second. */
#define COLLECTED_MS 600
/* More than one CPU can fill: measured 0.4 to 0.8 MiB a millisecond. */
#define FILL_BYTES_PER_MS MIB
#define CHECK_MIN_MS 5
#define CHECK_MAX_MS 2000
#define DEATH_MS 50
/* Without users' programs only file routes can fill memory, and slowly. */
#define ASLEEP_MS 5000
/* Time for a program to start, in which it cannot fill the margin. */
#define FIRST_CHECK_MS 10
/* Looks without programs before the guard sleeps: it need not be woken for each of several programs in a row. */
#define AWAKE_CHECKS 3
#define PROCESSORS_MAX 8
/* Pause while memory is short but all processes are small (a full tmpfs). */
#define CHECK_IN_VAIN_MS 25
/* Memory of a killed process is freed at 4 to 6 MiB a millisecond. */
#define FREE_BYTES_PER_MS (4 * MIB)
#define FREE_LEAST_MS 40
#define GROWTH (16 * MIB)
/* Pause while more than half of the allowed tasks run. */
#define CHECK_CROWDED_MS 50
/* Time for thousands of killed threads to end. */
#define THINNING_MS 5000

struct watch_state {
  struct memory_bell *bell;
  int proc_fd, current_fd;
  unsigned asked_processes;
  /* When users' programs were last counted: tasks of the machine that were not users', and all tasks if none was users', else -1. */
  int ours, alone;
  /* Last time that a crowd was killed: how many tasks there were, and until when they may still be ending. */
  int tasks_then;
  int64_t thinning_until_ms;
  struct search search;
  uint64_t used_at_start, agent_at_start;
  /* Last kill: until when its memory is still being freed, and how much was in use. */
  int64_t freeing_until_ms;
  uint64_t used_then;
  uint64_t settled; /* memory in use when growth was last judged, or less */
  bool grew;
  struct kernel_ledger kernel;
  uint64_t promised, anonymous, kernel_in_use; /* at this look */
  int64_t kernel_read_ms;
  int64_t over_since_ms;             /* since when there is too much because of kernel memory; 0: there is not */
  /* Processes killed last; they take a moment to end. */
  pid_t killed[REMEMBERED];
  size_t killed_count;
  void (*send)(struct bytes *frame);
};

struct memory_bell *memory_bell_make(void) {
  void *page = mmap(NULL, sizeof(struct memory_bell), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? NULL : page;
}

void memory_bell_hold(struct memory_bell *bell, int more) {
  if (!bell || more == 0) return;
  __atomic_add_fetch(&bell->held, more, __ATOMIC_SEQ_CST);
  if (more < 0) return;
  __atomic_add_fetch(&bell->rung, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&bell->asleep, __ATOMIC_SEQ_CST)) syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void pause_ms(int64_t ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Waits until a program is about to start, ASLEEP_MS at most. True if one is. */
static bool sleep_until_rung(struct memory_bell *bell, int seen_rings) {
  struct timespec time = {ASLEEP_MS / 1000, 0};
  __atomic_store_n(&bell->asleep, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bell->rung, FUTEX_WAIT, seen_rings, &time, NULL, 0);
  __atomic_store_n(&bell->asleep, 0, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST) != seen_rings;
}

/* Processes and threads in the users' cgroup, which root can leave in gVisor; -1: not known. */
static int tasks_in_group(const struct watch_state *g) {
  char text[16];
  ssize_t n = g->current_fd < 0 ? 0 : pread(g->current_fd, text, sizeof text - 1, 0);
  if (n <= 0) return -1;
  text[n] = 0;
  return atoi(text);
}

/* Processes and threads of the whole machine, the agent's too. */
static int tasks_of_all(void) {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? info.procs : 0;
}

/* Processes and threads of users' programs, in whatever cgroup: reads all of procfs. */
static int count_users(struct watch_state *g) {
  int all = tasks_of_all(), users = 0;
  struct process_list list = processes_read(g->proc_fd);
  struct candidate *found;
  struct census census;
  size_t count = candidates_of(&g->search, &list, &found, &census);
  for (size_t i = 0; i < count; i++) users += (int)found[i].process->threads;
  users += (int)(census.dying + census.ending);
  g->ours = all - users;
  g->alone = users == 0 ? all : -1;
  free(found);
  free(list.items);
  return users;
}

/* Whether a program of users runs outside of their cgroup. Reads procfs only if the number of tasks changed since none did. */
static bool runs_outside(struct watch_state *g) { return tasks_of_all() != g->alone && count_users(g) > 0; }

/* "Active(anon)" of meminfo: in gVisor all anonymous memory and tmpfs of the sandbox, with the agent's. 0: unknown. */
static uint64_t anonymous_memory(int proc_fd) {
  char text[2048];
  int fd = openat(proc_fd, "meminfo", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n > 0 ? n : 0] = 0;
  const char *at = strstr(text, "Active(anon):");
  return at ? strtoull(at + strlen("Active(anon):"), NULL, 10) << 10 : 0;
}

/* Memory promised to the sandbox: the total that gVisor shows. */
static uint64_t memory_promised(void) {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : UINT64_MAX / 2;
}

/* Kernel memory held for living programs. */
static uint64_t in_kernel_now(const struct watch_state *g) {
  uint64_t nobodys = KERNEL_FREE + g->kernel.garbage;
  return g->kernel_in_use > nobodys ? g->kernel_in_use - nobodys : 0;
}

/* By how much memory exceeds `limit`, or kernel memory its half of the promise: the larger of the two. */
static uint64_t excess_now(const struct watch_state *g, uint64_t limit) {
  uint64_t kernel = in_kernel_now(g), used = g->anonymous + kernel, half = g->promised / 2;
  uint64_t of_all = used > limit ? used - limit : 0, of_kernel = kernel > half ? kernel - half : 0;
  return of_all > of_kernel ? of_all : of_kernel;
}

/* Sent before the process dies, so that a caller waiting for its end knows the cause. */
static void report(const struct watch_state *g, const struct candidate *c) {
  struct bytes b = {0};
  size_t start = frame_open(&b, F_OUT_OF_MEMORY, 0, c->exec_id);
  put_u32(&b, (uint32_t)c->guest);
  put_u64(&b, c->bytes);
  put_string(&b, c->process->name);
  frame_close(&b, start);
  g->send(&b);
  free(b.data);
}

/* Whether a living process goes on taking memory. Memory that a killed process took in its last moment does not count. */
static bool grows_on(struct watch_state *g, uint64_t used, const struct census *census, bool grows) {
  bool again = grows && g->grew && census->dying == 0;
  g->grew = grows && census->dying == 0;
  if (grows) g->settled = used;
  return again;
}

/* Waits for the death: until then the process goes on making queues. */
static void await_death(pid_t pid) {
  for (int waited = 0; waited < DEATH_MS && kill(pid, 0) == 0; waited += CHECK_MIN_MS) pause_ms(CHECK_MIN_MS);
}

static void kill_one(struct watch_state *g, const struct candidate *c) {
  report(g, c);
  kill(c->process->pid, SIGKILL);
  g->killed[g->killed_count++ % REMEMBERED] = c->process->pid;
  if (c->in_kernel < WORTH_KILLING) return;
  await_death(c->process->pid);
  sysv_remove(g->proc_fd, c->guest);
}

/* Kills the largest processes until enough is freed. False if there was none to kill. */
static bool kill_largest(struct watch_state *g, bool grows) {
  struct process_list list = processes_read(g->proc_fd);
  kernel_forget_ended(&g->kernel, &list);
  uint64_t used = g->anonymous + in_kernel_now(g);
  struct candidate *candidates;
  struct census census;
  size_t count = candidates_of(&g->search, &list, &candidates, &census);
  uint64_t grown = census.agent_bytes > g->agent_at_start ? census.agent_bytes - g->agent_at_start : 0;
  uint64_t limit = g->promised + g->used_at_start + (grown < AGENT_GROWTH_MAX ? grown : AGENT_GROWTH_MAX);
  if (now_ms() < g->freeing_until_ms && limit < g->used_then) limit = g->used_then; /* memory is still being freed */
  /* Free a little more than the excess, so that the next look need not kill again. */
  uint64_t excess = excess_now(g, limit), freed = 0, coming = census.dying_bytes;
  if (excess > 0) excess += g->promised / 16;
  for (size_t i = 0; i < count && freed + coming < excess; i++) {
    bool small = !is_worth_killing(&candidates[i]), urgent = grows && used > limit + 2 * MARGIN_BYTES;
    /* Do not kill small processes while others end: they are not the cause. */
    if (small && (freed > 0 || census.ending > 0 || (!urgent && !grows_on(g, used, &census, grows)))) break;
    kill_one(g, &candidates[i]);
    freed += candidates[i].bytes;
    /* The owner of kernel memory is a guess: kill one and see the effect before the next. */
    if (small || candidates[i].in_kernel > excess / 2) break;
  }
  if (freed > 0) {
    g->used_then = g->settled = used;
    g->grew = false;
    g->freeing_until_ms = now_ms() + FREE_LEAST_MS + (int64_t)(freed / FREE_BYTES_PER_MS);
  }
  free(candidates);
  free(list.items);
  return freed > 0;
}

/* Whether to wait for a collection: the excess may be unused kernel memory, and there is still room. */
static bool may_be_collected(struct watch_state *g, uint64_t limit) {
  if (g->anonymous > limit) return false;
  if (g->over_since_ms == 0) g->over_since_ms = now_ms();
  return excess_now(g, limit) < MARGIN_BYTES && now_ms() < g->over_since_ms + COLLECTED_MS;
}

/* Whether kernel memory cannot have reached half of its limit yet. Then it is not read, which would stop the whole kernel for a moment. */
static bool kernel_is_far(const struct watch_state *g, int processors) {
  uint64_t grown = (uint64_t)(now_ms() - g->kernel_read_ms) * FILL_BYTES_PER_MS * (unsigned)processors;
  return g->kernel_in_use + grown < KERNEL_FREE + g->promised / 4;
}

/* One look. Returns the time to the next. */
static int64_t check(struct watch_state *g, uint64_t *before, int processors) {
  g->promised = memory_promised();
  g->anonymous = anonymous_memory(g->proc_fd);
  if (!kernel_is_far(g, processors)) {
    g->kernel_in_use = kernel_check(&g->kernel, g->proc_fd, is_ours, &g->search);
    g->kernel_read_ms = now_ms();
  }
  uint64_t used = g->anonymous + in_kernel_now(g), limit = g->promised + g->used_at_start;
  bool grows = used > *before + MIB, too_much = excess_now(g, limit) > 0;
  *before = used;
  bool freeing = now_ms() < g->freeing_until_ms && used < g->used_then + GROWTH;
  if (used < g->settled || !too_much || freeing) g->settled = used;
  if (too_much) {
    if (may_be_collected(g, limit)) return CHECK_MIN_MS;
    return freeing || kill_largest(g, used > g->settled + WORTH_KILLING) ? CHECK_MIN_MS : CHECK_IN_VAIN_MS;
  }
  g->over_since_ms = 0;
  if (now_ms() > g->freeing_until_ms) memset(g->killed, 0, sizeof g->killed); /* pids are used again */
  /* Early enough even if all CPUs begin now to fill memory. */
  uint64_t room = limit > used ? limit - used : 0, half = g->promised / 2, kernel = in_kernel_now(g);
  if (half - kernel < room) room = half - kernel;
  uint64_t ms = (room / (unsigned)processors + (grows ? 0 : MARGIN_BYTES)) / FILL_BYTES_PER_MS;
  return ms < CHECK_MIN_MS ? CHECK_MIN_MS : ms > CHECK_MAX_MS ? CHECK_MAX_MS : (int64_t)ms;
}

static void end_crowd(struct watch_state *g) {
  struct process_list list = processes_read(g->proc_fd);
  struct candidate *all;
  struct census census;
  size_t count = candidates_of(&g->search, &list, &all, &census), size;
  const struct candidate *crowd = crowd_of(all, count, &size);
  for (size_t i = 0; i < size; i++) kill(crowd[i].process->pid, SIGKILL);
  free(all);
  free(list.items);
}

/*
 * gVisor asks only one of a task's seven cgroups, whichever comes first, whether another task may start. At the limit six of seven
 * tries succeed, so a program that keeps trying keeps growing, and root can leave the group. Far above the limit it is killed.
 * Returns the time to the next look.
 */
static int64_t check_tasks(struct watch_state *g, int64_t wait_ms) {
  int limit = (int)process_limit_fitting(g->asked_processes), far = limit + limit / 2;
  int inside = tasks_in_group(g), about = tasks_of_all() - g->ours, tasks = inside > about ? inside : about;
  if (limit == 0 || tasks < limit / 2) return wait_ms;
  bool thinning = now_ms() < g->thinning_until_ms && tasks < g->tasks_then + limit / 4;
  if (tasks > far && !thinning && (inside > far || count_users(g) > far)) {
    end_crowd(g);
    g->tasks_then = tasks;
    g->thinning_until_ms = now_ms() + THINNING_MS;
  }
  return wait_ms < CHECK_CROWDED_MS ? wait_ms : CHECK_CROWDED_MS;
}

static void *guard_memory(void *argument) {
  struct watch_state *g = argument;
  struct candidate *none;
  struct process_list list = processes_read(g->proc_fd);
  struct census census;
  candidates_of(&g->search, &list, &none, &census);
  g->agent_at_start = census.agent_bytes;
  free(none);
  free(list.items);
  count_users(g);
  kernel_begin(&g->kernel, g->proc_fd);
  uint64_t used = anonymous_memory(g->proc_fd);
  g->used_at_start = used < AGENT_START_MAX ? used : AGENT_START_MAX;
  int processors = get_nprocs(), awake = 0;
  if (processors < 1) processors = 1;
  if (processors > PROCESSORS_MAX) processors = PROCESSORS_MAX;
  for (uint64_t before = 0;;) {
    int seen_rings = __atomic_load_n(&g->bell->rung, __ATOMIC_SEQ_CST);
    int held = __atomic_load_n(&g->bell->held, __ATOMIC_SEQ_CST);
    int64_t wait_ms = check_tasks(g, check(g, &before, processors));
    awake = tasks_in_group(g) != 0 || held != 0 ? AWAKE_CHECKS : awake - 1;
    if (awake <= 0 && runs_outside(g)) awake = AWAKE_CHECKS;
    if (awake > 0) pause_ms(wait_ms);
    else if (sleep_until_rung(g->bell, seen_rings)) {
      awake = AWAKE_CHECKS;
      pause_ms(FIRST_CHECK_MS);
    }
  }
  return NULL;
}

bool memory_guard_start(const struct memory_guard *guard, void (*send)(struct bytes *frame)) {
  static struct watch_state state;
  state = (struct watch_state){
      .bell = guard->bell,
      .proc_fd = guard->proc_fd,
      .current_fd = guard->current_fd,
      .asked_processes = guard->asked_processes,
      .send = send,
  };
  state.search = (struct search){getppid(), &state.kernel, state.killed};
  pthread_t thread;
  return pthread_create(&thread, NULL, guard_memory, &state) == 0;
}
