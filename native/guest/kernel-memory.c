#include "kernel-memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define MIB (1ull << 20)
/* Smaller changes are not entered, because an entry reads every process. */
#define ENTRY_BYTES (16 * MIB)
/* CPU time is counted in hundredths of a second: this is long enough to see who works. */
#define WORK_MS 50
/* Growth in WORK_MS that counts as still growing. */
#define GOES_ON_BYTES (4 * MIB)
/*
 * Time between looks at work without an entry, so that an entry does not count work of long before. Longer with more
 * processes.
 */
#define CHECK_MS 200
#define CHECK_MS_EACH 2
/* For this long growth may belong to an ended process, which took memory until its last moment. */
#define ENDED_MS 1000
/* Slower growth is assigned to processes with many descriptors first, and not to those that work. */
#define SLOW_BYTES_PER_MS 1024
/* Size of the descriptor table; a program with few descriptors has 512. */
#define MANY_DESCRIPTORS 512
/*
 * Weight of kernel work against user time. On a busy host the kernel counts its work late or not at all: a process seen running
 * counts as one hundredth of a second more. User time counts little, but a process that ran is likelier than one that slept.
 */
#define SYSTEM_WEIGHT 100
static size_t read_text(int proc_fd, const char *path, char *text, size_t size) {
  int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, size - 1);
  close(fd);
  text[n > 0 ? n : 0] = 0;
  return n > 0 ? (size_t)n : 0;
}

static uint64_t field_of(const char *text, const char *name) {
  const char *at = strstr(text, name);
  return at ? strtoull(at + strlen(name), NULL, 10) << 10 : 0;
}

uint64_t kernel_memory(int proc_fd) {
  char text[1024];
  if (read_text(proc_fd, "sentry-meminfo", text, sizeof text) == 0) return 0;
  /* Heap and stacks: each timer and each task has a stack. */
  uint64_t heap = field_of(text, "HeapAlloc:"), all = field_of(text, "\nSys:"), of_heap = field_of(text, "HeapSys:");
  return heap + (all > of_heap ? all - of_heap : 0);
}

static uint64_t descriptors_of(int proc_fd, pid_t pid) {
  char path[32], text[2048];
  snprintf(path, sizeof path, "%d/status", pid);
  if (read_text(proc_fd, path, text, sizeof text) == 0) return 0;
  const char *at = strstr(text, "FDSize:");
  return at ? strtoull(at + strlen("FDSize:"), NULL, 10) : 0;
}

static const struct holder *find(const struct kernel_ledger *ledger, pid_t pid) {
  size_t low = 0, high = ledger->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ledger->holders[middle].pid == pid) return &ledger->holders[middle];
    if (ledger->holders[middle].pid < pid) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

uint64_t kernel_share(const struct kernel_ledger *ledger, pid_t pid) {
  const struct holder *holder = find(ledger, pid);
  return holder ? holder->bytes : 0;
}

/* Freed memory is taken from the garbage first, and the rest from all holders in proportion: its owner is unknown. */
static void give_back(struct kernel_ledger *ledger, uint64_t bytes) {
  uint64_t rest = bytes > ledger->garbage ? bytes - ledger->garbage : 0, counted = 0;
  ledger->garbage -= bytes - rest;
  for (size_t i = 0; i < ledger->count; i++) counted += ledger->holders[i].bytes;
  uint64_t kept = counted > rest ? counted - rest : 0;
  for (size_t i = 0; rest > 0 && counted > 0 && i < ledger->count; i++)
    ledger->holders[i].bytes = (uint64_t)((double)ledger->holders[i].bytes * (double)kept / (double)counted);
}

/* Shares growth out in proportion to `by`; false if all of `by` is 0. */
static bool share_out(struct kernel_ledger *ledger, uint64_t grown, const uint64_t *by) {
  uint64_t all = 0;
  for (size_t i = 0; i < ledger->count; i++) all += by[i];
  for (size_t i = 0; all > 0 && i < ledger->count; i++) ledger->holders[i].bytes += (uint64_t)((double)grown * (double)by[i] / (double)all);
  return all > 0;
}

static uint64_t *many_descriptors(const struct kernel_ledger *ledger, int proc_fd) {
  uint64_t *open = calloc(ledger->count + 1, sizeof *open);
  if (!open) _exit(70);
  for (size_t i = 0; i < ledger->count; i++) {
    uint64_t count = descriptors_of(proc_fd, ledger->holders[i].pid);
    open[i] = count > MANY_DESCRIPTORS ? count : 0;
  }
  return open;
}

/* Ticks since `before`; all of them if the pid was reused. */
static uint64_t ticks_since(uint64_t before, uint64_t now) { return before <= now ? now - before : now; }

/* Updates the holders from `list`. Returns the work of each since the last look; the caller frees it. */
static uint64_t *check_work(struct kernel_ledger *ledger, const struct process_list *list, kernel_spared spared, const void *context) {
  struct holder *holders = calloc(list->count + 1, sizeof *holders);
  uint64_t *work = calloc(list->count + 1, sizeof *work);
  size_t count = 0;
  if (!holders || !work) _exit(70);
  kernel_forget_ended(ledger, list);
  for (size_t i = 0; i < list->count; i++) {
    const struct process *p = &list->items[i];
    if (p->dead || spared(context, list, p)) continue;
    const struct holder *before = find(ledger, p->pid);
    uint64_t system = ticks_since(before ? before->system_ticks : 0, p->system_ticks);
    uint64_t user = ticks_since(before ? before->user_ticks : 0, p->user_ticks);
    holders[count] = (struct holder){p->pid, p->system_ticks, p->user_ticks, before ? before->bytes : 0};
    work[count++] = (system + p->runs) * SYSTEM_WEIGHT + user;
  }
  free(ledger->holders);
  ledger->holders = holders;
  ledger->count = count;
  ledger->checked_ms = now_ms();
  return work;
}

void kernel_forget_ended(struct kernel_ledger *ledger, const struct process_list *list) {
  if (now_ms() > ledger->ended_ms + ENDED_MS) ledger->ended = 0;
  for (size_t i = 0; i < ledger->count; i++) {
    const struct process *p = process_find(list, ledger->holders[i].pid);
    if (p && !p->dead) continue;
    if (ledger->holders[i].bytes >= ENTRY_BYTES) {
      ledger->ended += ledger->holders[i].bytes;
      ledger->ended_ms = now_ms();
    }
    ledger->garbage += ledger->holders[i].bytes;
    ledger->holders[i].bytes = 0;
  }
}

void kernel_begin(struct kernel_ledger *ledger, int proc_fd) {
  ledger->in_use = kernel_memory(proc_fd);
  ledger->entered_ms = ledger->checked_ms = now_ms();
}

static void enter_growth(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context) {
  struct process_list list = processes_read(proc_fd);
  bool is_stale = now_ms() - ledger->checked_ms > 2 * WORK_MS;
  uint64_t *work = check_work(ledger, &list, spared, context);
  uint64_t in_use = kernel_memory(proc_fd);
  if (is_stale) {
    nanosleep(&(struct timespec){0, WORK_MS * 1000000}, NULL);
    uint64_t then = in_use;
    in_use = kernel_memory(proc_fd);
    if (in_use >= then + GOES_ON_BYTES) {
      /* Memory still grows, so count only the work of this moment. Otherwise the earlier work decides. */
      free(work);
      free(list.items);
      list = processes_read(proc_fd);
      work = check_work(ledger, &list, spared, context);
    }
  }
  uint64_t grown = in_use > ledger->in_use ? in_use - ledger->in_use : 0;
  bool is_slow = grown / SLOW_BYTES_PER_MS < (uint64_t)(now_ms() - ledger->entered_ms);
  uint64_t *descriptors = many_descriptors(ledger, proc_fd);
  const uint64_t *first = is_slow ? descriptors : work, *second = is_slow ? work : descriptors;
  /* Growth of ended processes is garbage. */
  uint64_t gone = ledger->ended < grown ? ledger->ended : grown;
  ledger->garbage += gone;
  grown -= gone;
  if (!share_out(ledger, grown, first) && !share_out(ledger, grown, second)) ledger->garbage += grown;
  free(descriptors);
  free(work);
  free(list.items);
  ledger->in_use = in_use;
  ledger->entered_ms = now_ms();
  ledger->ended = 0;
}

static void check_again(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context) {
  struct process_list list = processes_read(proc_fd);
  free(check_work(ledger, &list, spared, context));
  free(list.items);
}

uint64_t kernel_check(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context) {
  uint64_t in_use = kernel_memory(proc_fd);
  if (in_use >= ledger->in_use + ENTRY_BYTES) {
    enter_growth(ledger, proc_fd, spared, context);
    return ledger->in_use;
  }
  if (in_use + ENTRY_BYTES <= ledger->in_use) {
    give_back(ledger, ledger->in_use - in_use);
    ledger->in_use = in_use;
    ledger->entered_ms = now_ms();
  }
  if (now_ms() > ledger->checked_ms + CHECK_MS + CHECK_MS_EACH * (int64_t)ledger->count) check_again(ledger, proc_fd, spared, context);
  return in_use;
}
