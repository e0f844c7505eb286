/*
 * System calls without libc. The processes made by launcher.c share init's memory with its thread pointer, and so libc's errno:
 * they may use only the calls of this file. Every call returns -errno on failure.
 */
#ifndef CLOCHE_SYS_H
#define CLOCHE_SYS_H

#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f) {
  long ret;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return ret;
}
#elif defined(__aarch64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = n;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
#error "x86_64 and aarch64 are supported"
#endif

#define SYS_PICK(_0, a, b, c, d, e, f, name, ...) name
#define sys_call(...) SYS_PICK(__VA_ARGS__, sys_a6, sys_a5, sys_a4, sys_a3, sys_a2, sys_a1, sys_a0)(__VA_ARGS__)
#define sys_a0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define sys_a1(n, a) sys6(n, (long)(a), 0, 0, 0, 0, 0)
#define sys_a2(n, a, b) sys6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define sys_a3(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sys_a4(n, a, b, c, d) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define sys_a5(n, a, b, c, d, e) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define sys_a6(n, a, b, c, d, e, f) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* clone(2) onto a new stack; the child calls fn(arg), which must not return. `pid` is for CLONE_PARENT_SETTID. Assembly in launcher.c. */
long sys_clone(unsigned long flags, void *stack_top, void (*fn)(void *), void *arg, volatile int *pid);

/* gVisor refuses a last descriptor above INT_MAX. */
#define LAST_FD 0x7fffffff

#endif
