/*
 * The clock of the agent's Node under gVisor, loaded before libc.
 *
 * In the first second after a sandbox was started or restored, gVisor's vDSO measures the processor's counter, and each reading
 * of the clock is a system call to the sentry. Node reads the clock at every turn of its loop, every compilation and collection:
 * three quarters of the system calls of a machine that is made ready, and a quarter of a fork's up to its first answer. So
 * while a reading takes a system call, its result is reused for about half a millisecond. Otherwise every reading is real.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_SECOND 1000000000ll

/* In ticks of the counter. On amd64 it has 1 to 5 ticks a nanosecond, so a result is reused for 0.2 to 1 ms. */
#if defined(__x86_64__)
static inline uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }
/* The vDSO takes some hundred ticks, gVisor's system call ten thousand and more. */
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
 * The newest time that any thread got. It is stored before a thread returns it, so that no thread sees the time go backwards.
 * `asked_at`: counter at the last reading by a system call; stored last and loaded first.
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
    /* Only the real time may go back. */
    if (clock == CLOCK_MONOTONIC && ns <= newest) return;
  } while (!atomic_compare_exchange_weak(&answers[clock].ns, &newest, ns));
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) return ask(clock, time);
  uint64_t now = ticks(), asked_at = atomic_load(&answers[clock].asked_at);
  /* After a restore on another computer the counter may have any value: reuse the result only just after its reading. */
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
