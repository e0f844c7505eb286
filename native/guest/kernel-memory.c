#include "kernel-memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define MIB (1ull << 20)
/* Grown or shrunk by less than this it is not entered: an entry reads every process. */
#define ENTRY_BYTES (16 * MIB)
/* Work is counted in hundredths of a second: who did it is seen in so long. */
#define WORK_MS 50
/* It goes on growing, if so much in that time. */
#define GOES_ON_BYTES (4 * MIB)
/*
 * Work is looked at so often without an entry, so that an entry does not count what was done long before; less often, the more
 * processes there are.
 */
#define LOOK_MS 200
#define LOOK_MS_EACH 2
/* For so long, growth may be of one that ended: it took memory until its last moment. */
#define ENDED_MS 1000
/* What grew more slowly is rather with those that hold many descriptors than with those that work. */
#define SLOW_BYTES_PER_MS 1024
/* The size of its table, which is 512 in a program that holds a few. */
#define MANY_DESCRIPTORS 512
/*
 * On a busy host the kernel counts its work late or not at all: who is seen in it worked a hundredth. Who worked for himself
 * alone is rather the one than who slept.
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
  /* Beside its heap, what it has for stacks: a timer and a task have one each. */
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

/* What is given back is garbage first; what else was freed, nobody says whose it was. */
static void give_back(struct kernel_ledger *ledger, uint64_t bytes) {
  uint64_t rest = bytes > ledger->garbage ? bytes - ledger->garbage : 0, counted = 0;
  ledger->garbage -= bytes - rest;
  for (size_t i = 0; i < ledger->count; i++) counted += ledger->holders[i].bytes;
  uint64_t kept = counted > rest ? counted - rest : 0;
  for (size_t i = 0; rest > 0 && counted > 0 && i < ledger->count; i++)
    ledger->holders[i].bytes = (uint64_t)((double)ledger->holders[i].bytes * (double)kept / (double)counted);
}

/* False where nobody has any of `by`. */
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

/* Of a pid that is used again, all. */
static uint64_t ticks_since(uint64_t before, uint64_t now) { return before <= now ? now - before : now; }

/* Brings the holders up to date with `list`; what each has worked since the last look, to be freed by the caller. */
static uint64_t *look_at_work(struct kernel_ledger *ledger, const struct process_list *list, kernel_spared spared, const void *context) {
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
  ledger->looked_ms = now_ms();
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
  ledger->entered_ms = ledger->looked_ms = now_ms();
}

static void enter_growth(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context) {
  struct process_list list = processes_read(proc_fd);
  bool is_stale = now_ms() - ledger->looked_ms > 2 * WORK_MS;
  uint64_t *work = look_at_work(ledger, &list, spared, context);
  uint64_t in_use = kernel_memory(proc_fd);
  if (is_stale) {
    nanosleep(&(struct timespec){0, WORK_MS * 1000000}, NULL);
    uint64_t then = in_use;
    in_use = kernel_memory(proc_fd);
    if (in_use >= then + GOES_ON_BYTES) {
      /* Who worked hard at another time is not who does it now. Where nobody does, it was one of those. */
      free(work);
      free(list.items);
      list = processes_read(proc_fd);
      work = look_at_work(ledger, &list, spared, context);
    }
  }
  uint64_t grown = in_use > ledger->in_use ? in_use - ledger->in_use : 0;
  bool is_slow = grown / SLOW_BYTES_PER_MS < (uint64_t)(now_ms() - ledger->entered_ms);
  uint64_t *descriptors = many_descriptors(ledger, proc_fd);
  const uint64_t *first = is_slow ? descriptors : work, *second = is_slow ? work : descriptors;
  /* Whoever did it is gone already: what is left of that is nobody's. */
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

static void look_again(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context) {
  struct process_list list = processes_read(proc_fd);
  free(look_at_work(ledger, &list, spared, context));
  free(list.items);
}

uint64_t kernel_look(struct kernel_ledger *ledger, int proc_fd, kernel_spared spared, const void *context) {
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
  if (now_ms() > ledger->looked_ms + LOOK_MS + LOOK_MS_EACH * (int64_t)ledger->count) look_again(ledger, proc_fd, spared, context);
  return in_use;
}
