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

#include "clock.h"
#include "exec-keeper.h"
#include "process-tree.h"

#define MIB (1ull << 20)
/* The agent's memory comes on top of what was promised: what was in use when it began, and what it grew by since, at most so much. */
#define AGENT_START_MAX (96 * MIB)
#define AGENT_GROWTH_MAX (96 * MIB)
/* The machine's limit lies at least twice as far above ours, and 256 MiB further for each processor (the host's gvisor/unit-limits.ts). */
#define MARGIN_BYTES (64 * MIB)
/* Faster than one processor touches new memory: measured 0.4 to 0.8 MiB a millisecond. */
#define FILL_BYTES_PER_MS MIB
#define LOOK_MIN_MS 5
#define LOOK_MAX_MS 2000
/* Without a program of users only file routes can fill anything, and slowly. */
#define ASLEEP_MS 5000
/* A program is let start: it cannot fill the margin in that time. */
#define FIRST_LOOK_MS 10
/* One that was just started is not counted yet. */
#define AWAKE_LOOKS 3
#define PROCESSORS_MAX 8
/* While only small processes run in too much memory (a full tmpfs). */
#define LOOK_IN_VAIN_MS 25
#define REMEMBERED 64
/* What a killed process had is given back at 4 to 6 MiB a millisecond. */
#define FREE_BYTES_PER_MS (4 * MIB)
#define FREE_LEAST_MS 40
/*
 * Killing smaller ones frees nothing: they are spared, so that somebody can clean up, unless memory grows nevertheless (one
 * fills a tmpfs). Then one at a time.
 */
#define WORTH_KILLING (4 * MIB)
#define CROWD 64 /* more are not looked at one by one */
#define GROWTH (16 * MIB)

struct watch_state {
  struct memory_bell *bell;
  int proc_fd, current_fd;
  pid_t agent;
  uint64_t used_at_start, agent_at_start;
  /* Of the last killing: until when its memory is still being given back, and how much was in use. */
  int64_t freeing_until_ms;
  uint64_t used_then;
  uint64_t settled; /* what was in use when growth was last judged, or less */
  bool grew;
  /* Whom we killed last: they take a moment to end. */
  pid_t killed[REMEMBERED];
  size_t killed_count;
  void (*send)(struct bytes *frame);
};

struct memory_bell *memory_bell_make(void) {
  void *page = mmap(NULL, sizeof(struct memory_bell), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? NULL : page;
}

void memory_bell_ring(struct memory_bell *bell) {
  if (!bell) return;
  __atomic_add_fetch(&bell->rung, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&bell->asleep, __ATOMIC_SEQ_CST)) syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void pause_ms(int64_t ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Waits for the first program, or a while. True when one was started. */
static bool sleep_until_rung(struct memory_bell *bell, int heard) {
  struct timespec time = {ASLEEP_MS / 1000, 0};
  __atomic_store_n(&bell->asleep, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &bell->rung, FUTEX_WAIT, heard, &time, NULL, 0);
  __atomic_store_n(&bell->asleep, 0, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST) != heard;
}

static bool any_program(const struct watch_state *g) {
  char text[16];
  ssize_t n = g->current_fd < 0 ? 0 : pread(g->current_fd, text, sizeof text - 1, 0);
  if (n <= 0) return true; /* not known */
  text[n] = 0;
  return atoi(text) > 0;
}

/* "Active(anon)" of meminfo: in gVisor all anonymous memory and tmpfs of the sandbox, the agent's too. 0 where it cannot be told. */
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

/* What the sandbox was promised: the total that gVisor shows. */
static uint64_t memory_promised(void) {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : UINT64_MAX / 2;
}

/* The init of the guest that a process is of, and the process of its tree that init started; NULL: none of the users'. */
static const struct process *guest_of(const struct watch_state *g, const struct process_list *list, const struct process *p,
                                      const struct process **top) {
  for (size_t hops = 0; p && hops <= list->count; hops++) {
    const struct process *parent = process_find(list, p->parent);
    const struct process *files = parent ? process_find(list, parent->parent) : NULL;
    if (files && files->parent == g->agent) {
      *top = p;
      return parent;
    }
    p = parent;
  }
  return NULL;
}

/* A keeper shares the memory of init. A user's process that calls itself one has memory of its own. */
static bool is_keeper(const struct process *p, const struct process *init) {
  return p->parent == init->pid && strncmp(p->name, KEEPER_NAME, strlen(KEEPER_NAME)) == 0 && p->rss <= init->rss + MIB;
}

static bool was_killed(const struct watch_state *g, pid_t pid) {
  for (size_t i = 0; i < REMEMBERED; i++)
    if (g->killed[i] == pid) return true;
  return false;
}

struct candidate {
  const struct process *process;
  pid_t guest;
  uint32_t exec_id;
};

static int by_size(const void *a, const void *b) {
  uint64_t left = ((const struct candidate *)a)->process->rss, right = ((const struct candidate *)b)->process->rss;
  return left > right ? -1 : left < right;
}

/* Users' processes, largest first. Adds up what the agent's own have, and counts those that were killed and live on. */
static size_t candidates_of(const struct watch_state *g, const struct process_list *list, struct candidate **found, uint64_t *agent_bytes,
                            size_t *dying) {
  struct candidate *all = calloc(list->count + 1, sizeof *all);
  size_t count = 0;
  *agent_bytes = 0;
  *dying = 0;
  if (!all) _exit(70);
  for (size_t i = 0; i < list->count; i++) {
    const struct process *p = &list->items[i], *top = NULL;
    const struct process *init = guest_of(g, list, p, &top);
    if (!init) *agent_bytes += p->rss;
    if (!init || p->dead || is_keeper(p, init)) continue;
    if (was_killed(g, p->pid)) {
      ++*dying;
      continue;
    }
    uint32_t id = is_keeper(top, init) ? (uint32_t)strtoul(top->name + strlen(KEEPER_NAME), NULL, 16) : 0;
    all[count++] = (struct candidate){p, init->parent, id};
  }
  qsort(all, count, sizeof *all, by_size);
  *found = all;
  return count;
}

/* Told before the process dies, so that whoever waits for its end knows why. */
static void tell(const struct watch_state *g, const struct candidate *c) {
  struct bytes b = {0};
  size_t start = frame_open(&b, F_OUT_OF_MEMORY, 0, c->exec_id);
  put_u32(&b, (uint32_t)c->guest);
  put_u64(&b, c->process->rss);
  put_string(&b, c->process->name);
  frame_close(&b, start);
  g->send(&b);
  free(b.data);
}

/* Whether somebody who lives goes on taking memory: what a killed one still took in its last moment does not count. */
static bool grows_on(struct watch_state *g, uint64_t used, size_t dying, bool grows) {
  bool again = grows && g->grew && dying == 0;
  g->grew = grows && dying == 0;
  if (grows) g->settled = used;
  return again;
}

/* False when there was nobody to kill. */
static bool kill_largest(struct watch_state *g, uint64_t used, uint64_t promised, bool grows) {
  struct process_list list = processes_read(g->proc_fd);
  struct candidate *candidates;
  uint64_t agent_bytes, freed = 0;
  size_t dying, count = candidates_of(g, &list, &candidates, &agent_bytes, &dying);
  uint64_t grown = agent_bytes > g->agent_at_start ? agent_bytes - g->agent_at_start : 0;
  uint64_t limit = promised + g->used_at_start + (grown < AGENT_GROWTH_MAX ? grown : AGENT_GROWTH_MAX);
  if (now_ms() < g->freeing_until_ms && limit < g->used_then) limit = g->used_then; /* the rest is on its way back */
  /* A little more than what is too much: else the next look comes to the same. */
  uint64_t excess = used > limit ? used - limit + promised / 16 : 0;
  for (size_t i = 0; i < count && freed < excess; i++) {
    const struct process *p = candidates[i].process;
    bool small = p->rss < WORTH_KILLING && count <= CROWD, urgent = grows && used > limit + 2 * MARGIN_BYTES;
    if (small && (freed > 0 || (!urgent && !grows_on(g, used, dying, grows)))) break;
    tell(g, &candidates[i]);
    kill(p->pid, SIGKILL);
    g->killed[g->killed_count++ % REMEMBERED] = p->pid;
    freed += p->rss;
    if (small) break;
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

/* One look; how long until the next. */
static int64_t look(struct watch_state *g, uint64_t *before, int processors) {
  uint64_t promised = memory_promised(), used = anonymous_memory(g->proc_fd), limit = promised + g->used_at_start;
  bool grows = used > *before + MIB;
  *before = used;
  bool freeing = now_ms() < g->freeing_until_ms && used < g->used_then + GROWTH;
  if (used < g->settled || used <= limit || freeing) g->settled = used;
  if (used > limit) {
    return freeing || kill_largest(g, used, promised, used > g->settled + WORTH_KILLING) ? LOOK_MIN_MS : LOOK_IN_VAIN_MS;
  }
  if (now_ms() > g->freeing_until_ms) memset(g->killed, 0, sizeof g->killed); /* pids are used again */
  /* In time even where all processors begin now to do nothing but touch memory. */
  uint64_t ms = ((limit - used) / (unsigned)processors + (grows ? 0 : MARGIN_BYTES)) / FILL_BYTES_PER_MS;
  return ms < LOOK_MIN_MS ? LOOK_MIN_MS : ms > LOOK_MAX_MS ? LOOK_MAX_MS : (int64_t)ms;
}

static void *guard_memory(void *argument) {
  struct watch_state *g = argument;
  struct candidate *none;
  struct process_list list = processes_read(g->proc_fd);
  size_t dying;
  candidates_of(g, &list, &none, &g->agent_at_start, &dying);
  free(none);
  free(list.items);
  uint64_t used = anonymous_memory(g->proc_fd);
  g->used_at_start = used < AGENT_START_MAX ? used : AGENT_START_MAX;
  int processors = get_nprocs(), awake = 0;
  if (processors < 1) processors = 1;
  if (processors > PROCESSORS_MAX) processors = PROCESSORS_MAX;
  for (uint64_t before = 0;;) {
    int heard = __atomic_load_n(&g->bell->rung, __ATOMIC_SEQ_CST);
    int64_t wait_ms = look(g, &before, processors);
    awake = any_program(g) ? AWAKE_LOOKS : awake - 1;
    if (awake > 0) pause_ms(wait_ms);
    else if (sleep_until_rung(g->bell, heard)) {
      awake = AWAKE_LOOKS;
      pause_ms(FIRST_LOOK_MS);
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
      .agent = getppid(),
      .send = send,
  };
  pthread_t thread;
  return pthread_create(&thread, NULL, guard_memory, &state) == 0;
}
