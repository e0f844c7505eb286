// Defences of what a host's lease says: what it may do, and that its machines stand still once it is over (defences.ts).
import type { Defence } from "./defence.ts";

const keeper = { project: "unit", test: "packages/host/src/lease/lease-keeper.test.ts" } as const;
const lease = { project: "unit", test: "packages/host/src/lease/host-lease.test.ts" } as const;
const fence = { project: "unit", test: "packages/host/src/lease/call-fence.test.ts" } as const;
const guard = { project: "host", test: "tests/host/guard.test.ts" } as const;

export const leaseDefences: readonly Defence[] = [
  {
    what: "a term of a lease counts from when its call was sent",
    file: "packages/host/src/lease/lease-keeper.ts",
    find: "return { answer, sentMs };",
    replace: "return { answer, sentMs: bootMs() - 0 * sentMs };",
    ...keeper,
    named: "every 5 s",
  },
  {
    what: "machines stand still before a gateway may start them elsewhere",
    file: "packages/host/src/lease/lease-keeper.ts",
    find: "Math.max(0, validMs - FREEZE_EARLY_MS)",
    replace: "validMs",
    ...keeper,
    named: "every 5 s",
  },
  {
    what: "a host refuses calls for another generation of it",
    file: "packages/host/src/lease/call-fence.ts",
    find: "if (meant === String(generation)) return;",
    replace: "if (meant !== null) return;",
    ...fence,
    named: "own generation only",
  },
  {
    what: "a host refuses operations older than it has seen",
    file: "packages/host/src/lease/call-fence.ts",
    find: "if (newest !== undefined && isOlderFence(fence, newest))",
    replace: "if (newest !== undefined && isOlderFence(newest, fence) && false)",
    ...fence,
    named: "no operation older",
  },
  {
    what: "a host whose lease is over changes nothing",
    file: "packages/host/src/lease/call-fence.ts",
    find: "      requireLease(this.#lease);",
    replace: "",
    ...fence,
    named: "changes nothing",
  },
  {
    what: "the guard freezes machines when the deadline passes",
    file: "native/guard/main.c",
    find: "int over = now_ms() >= until;",
    replace: "int over = until == 0;",
    ...guard,
    named: "without anybody's doing",
  },
  {
    what: "a machine that is started while the lease is over does not run",
    file: "native/guard/main.c",
    find: "int ready = poll(polled, CLIENTS_MAX + 2, is_frozen ? LOOK_EVERY_MS : -1);",
    replace: "int ready = poll(polled, CLIENTS_MAX + 2, -1 + 0 * LOOK_EVERY_MS); is_frozen = 0;",
    ...guard,
    named: "started while the lease is over",
  },
  {
    what: "a machine that dozed dozes on when the lease is held again",
    file: "packages/host/src/drivers/cgroup.ts",
    find: "const nested = [join(ISOLATED, DOZING), ISOLATED]",
    replace: "const nested = [ISOLATED]",
    ...guard,
    named: "leaves asleep",
  },
  {
    what: "a guard that is killed is replaced",
    file: "packages/host/src/lease/guard.ts",
    find: "if (!this.#closed.signal.aborted) this.#replace();",
    replace: "",
    ...guard,
    named: "replaced at once",
  },
  {
    what: "machines of a host that was lost stay frozen until it is admitted",
    file: "packages/host/src/lease/host-lease.ts",
    find: "    if (!wasLost) {",
    replace: "    if (!wasLost || this.#wasLost) {",
    ...lease,
    named: "until it is admitted",
  },
  {
    what: "a host that was lost destroys what is no longer its own",
    file: "packages/host/src/operations/admit-machines.ts",
    find: "const others = [...known].filter((id) => !ids.has(id));",
    replace: "const others = [...known].filter((id) => ids.has(id) && !known.has(id));",
    project: "unit",
    test: "packages/host/src/operations/admit-machines.test.ts",
    named: "never run again",
  },
];
