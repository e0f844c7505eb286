/*
 * The clock of the agent's Node under gVisor, loaded before libc.
 *
 * gVisor's vDSO tells the time without a system call only from a second after a sandbox was started or restored: until then
 * it measures the processor's counter, and each question is a switch to the sentry and back. Node asks at every turn of its
 * loop, at every compilation and collection: that was three quarters of the system calls of a machine that is made ready,
 * and a quarter of a fork's until its first command was answered. So while asking takes a system call, the answer holds
 * for about half a millisecond. Where it takes none, every question is asked.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_SECOND 1000000000ll

/* In ticks of the counter. On amd64 that has 1 to 5 of them a nanosecond, so an answer holds for 0.2 to 1 ms. */
#if defined(__x86_64__)
static inline uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }
/* The vDSO takes some hundred, gVisor's system call ten thousand and more. */
static inline uint64_t slow(void) { return 4096; }
static inline uint64_t holds(void) { return 1 << 20; }
#elif defined(__aarch64__)
static inline uint64_t ticks(void) {
  uint64_t now;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
}
static inline uint64_t frequency(void) {
  uint64_t hz;
  __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
  return hz;
}
static inline uint64_t slow(void) { return frequency() / 500000; }
static inline uint64_t holds(void) { return frequency() / 2000; }
#endif

typedef int asking(clockid_t, struct timespec *);

/*
 * Of all threads, newest first: whatever one of them was told is noted before it is told, so none sees the time go backwards.
 * `asked_at`, of the last that took a system call, is stored last and loaded first.
 */
static struct {
  _Atomic int64_t ns;
  _Atomic uint64_t asked_at;
} answers[2]; /* CLOCK_REALTIME, CLOCK_MONOTONIC */

static int ask(clockid_t clock, struct timespec *time) {
  static _Atomic(asking *) libc;
  asking *known = atomic_load_explicit(&libc, memory_order_acquire);
  if (known == NULL) {
    known = (asking *)dlsym(RTLD_NEXT, "clock_gettime");
    atomic_store_explicit(&libc, known, memory_order_release);
  }
  return known(clock, time);
}

static void note(clockid_t clock, int64_t ns) {
  int64_t newest = atomic_load(&answers[clock].ns);
  do {
    /* Only the real time may be set back. */
    if (clock == CLOCK_MONOTONIC && ns <= newest) return;
  } while (!atomic_compare_exchange_weak(&answers[clock].ns, &newest, ns));
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return ask(clock, time);
  uint64_t now = ticks(), asked_at = atomic_load(&answers[clock].asked_at);
  /* In another machine, after a restore, the counter may be anywhere: what is not just after the answer is asked again. */
  if (asked_at != 0 && now - asked_at < holds()) {
    int64_t ns = atomic_load(&answers[clock].ns);
    *time = (struct timespec){.tv_sec = ns / NS_PER_SECOND, .tv_nsec = ns % NS_PER_SECOND};
    return 0;
  }
  int result = ask(clock, time);
  if (result == 0) {
    note(clock, time->tv_sec * NS_PER_SECOND + time->tv_nsec);
    if (ticks() - now > slow()) atomic_store(&answers[clock].asked_at, now);
  }
  return result;
}
