import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { buildAddon } from "@cloche/agent/build-addon";

const run = promisify(execFile);
const folder = mkdtempSync(join(tmpdir(), "cloche-clock-"));
const clock = join(folder, "clock.so");
const below = join(folder, "below.so");
const asker = join(folder, "asker");

/** The libc below ours: a system call, after as many turns of a loop as SPIN says; counts how often it was asked. */
const belowSource = `
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
_Atomic long asked;
static long spin;
__attribute__((constructor)) static void set_up(void) { spin = atol(getenv("SPIN")); }
int clock_gettime(clockid_t clock, struct timespec *time) {
  atomic_fetch_add(&asked, 1);
  for (volatile long turn = 0; turn < spin; turn++);
  return (int)syscall(SYS_clock_gettime, clock, time);
}
`;

/** Two threads that ask as often as they can for 300 ms; each answer is held against the kernel's and the newest of all. */
const askerSource = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static _Atomic long long newest, backwards, behind, ahead, times;
static long long ns(struct timespec t) { return t.tv_sec * 1000000000ll + t.tv_nsec; }
static long long kernel(void) { struct timespec t; syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t); return ns(t); }
static void *ask(void *unused) {
  long long end = kernel() + 300000000ll;
  for (;;) {
    long long seen = atomic_load(&newest), before = kernel();
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long said = ns(t), after = kernel();
    atomic_fetch_add(&times, 1);
    if (said < seen) atomic_fetch_add(&backwards, 1);
    if (said > after) atomic_fetch_add(&ahead, 1);
    if (before - said > 2000000) atomic_fetch_add(&behind, 1);
    while (said > seen && !atomic_compare_exchange_weak(&newest, &seen, said));
    if (after > end) return unused;
  }
}
int main(void) {
  pthread_t other;
  pthread_create(&other, NULL, ask, NULL);
  ask(NULL);
  pthread_join(other, NULL);
  struct timespec cpu, real;
  int others = clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) | clock_gettime(CLOCK_REALTIME, &real);
  long *asked = dlsym(RTLD_DEFAULT, "asked");
  long all = *asked;
  int whole = 0;
  for (int round = 0; round < 200; round++) {
    usleep(1500);
    long before = *asked;
    for (int i = 0; i < 50; i++) {
      struct timespec t;
      clock_gettime(CLOCK_MONOTONIC, &t);
    }
    if (*asked - before == 50) whole++;
  }
  printf("{\\"whole\\":%d,\\"times\\":%lld,\\"asked\\":%ld,\\"backwards\\":%lld,\\"behind\\":%lld,\\"ahead\\":%lld,\\"cpuMs\\":%lld,\\"realMs\\":%lld,\\"others\\":%d,\\"bad\\":%d}\\n",
    whole, times, all, backwards, behind, ahead, ns(cpu) / 1000000, ns(real) / 1000000, others, clock_gettime(99, &cpu));
}
`;

interface Said {
  /** The asker's questions, and those that came down to libc. */
  times: number;
  asked: number;
  /** Of 200 rounds of 50 questions, each begun when no answer holds any more: those in which every question came down to libc. */
  whole: number;
  /** Answers older than one that was given before, older than 2 ms, or of the future. */
  backwards: number;
  behind: number;
  ahead: number;
  cpuMs: number;
  realMs: number;
  /** What asking for other clocks answered: 0, and -1 for one that there is not. */
  others: number;
  bad: number;
}

beforeAll(async () => {
  await buildAddon("clock", clock);
  writeFileSync(`${below}.c`, belowSource);
  writeFileSync(`${asker}.c`, askerSource);
  await run("gcc", ["-O2", "-shared", "-fPIC", "-o", below, `${below}.c`]);
  await run("gcc", ["-O2", "-pthread", "-o", asker, `${asker}.c`]);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const ask = async (spin: number): Promise<Said> => {
  const env = { LD_PRELOAD: `${clock}:${below}`, SPIN: String(spin) };
  return JSON.parse((await run(asker, { env })).stdout) as Said;
};

test("while asking takes long the answer holds, and no thread sees time go backwards", async () => {
  const said = await ask(100_000);
  expect(said).toMatchObject({ backwards: 0, behind: 0, ahead: 0, others: 0, bad: -1 });
  expect(said.asked).toBeLessThan(said.times / 20);
  expect(said.asked).toBeGreaterThan(20);
  expect(said.whole).toBe(0);
  expect(Math.abs(said.realMs - Date.now())).toBeLessThan(10_000);
  expect(said.cpuMs).toBeGreaterThan(20);
});

test("where asking takes no time every question is asked", async () => {
  const said = await ask(0);
  expect(said).toMatchObject({ backwards: 0, behind: 0, ahead: 0, others: 0, bad: -1 });
  // One question that an interrupt makes slow spoils its round: on a busy machine there are some of them.
  expect(said.whole).toBeGreaterThan(100);
});
