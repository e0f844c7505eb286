// Defences of what lost and draining hosts had (defences.ts).
import type { Defence } from "./defence.ts";

const lost = { project: "unit", test: "packages/gateway/src/lifecycle/lost-hosts.test.ts" } as const;
const drains = { project: "unit", test: "packages/gateway/src/lifecycle/drains.test.ts" } as const;
const steps = "packages/gateway/src/lifecycle/machine-steps.ts";

export const lossDefences: readonly Defence[] = [
  {
    what: "a copy of an earlier suspension is not resumed",
    file: steps,
    find: "return storedImage?.key === key;",
    replace: "return storedImage?.key !== key || storedImage !== undefined;",
    ...lost,
    named: "a copy of an earlier suspension",
  },
  {
    what: "what is durable is not in ERROR",
    file: steps,
    find: 'return fate === "lost" && isDurable ? "suspended" : fate;',
    replace: "return isDurable ? fate : fate;",
    ...lost,
    named: "an image that cannot be brought",
  },
  {
    what: "compute time of what was lost ends when it was last seen",
    file: "packages/gateway/src/lifecycle/lost-hosts.ts",
    find: "{ leavesLostHost: true, ranUntilSeen: true, audit: entry, ...(end && { end }) },",
    replace: "{ leavesLostHost: true, audit: entry, ...(end && { end }) },",
    ...lost,
    named: "compute time ends",
  },
  {
    what: "calls of a host that is lost are given up",
    file: "packages/gateway/src/lifecycle/operation-runner.ts",
    find: "this.#calling.get(hostId)?.abort(new Error(`host ${hostId} is lost`));",
    replace: "",
    ...lost,
    named: "one that is being made",
  },
  {
    what: "a host that drains gives away a few sandboxes at once",
    file: "packages/gateway/src/lifecycle/drains.ts",
    find: "let slots = gatewayLimits.drainAtOnce -",
    replace: "let slots = 99 -",
    ...drains,
    named: "a few at once",
  },
  {
    what: "requests wait for a sandbox that moves",
    file: "packages/gateway/src/lifecycle/wake.ts",
    find: 'state === "SANDBOX_STATE_RESUMING" || isMoving)',
    replace: 'state === "SANDBOX_STATE_RESUMING" || (isMoving && autoResume))',
    ...drains,
    named: "has requests wait",
  },
  {
    what: "an owner's suspension ends a move",
    file: "packages/gateway/src/lifecycle/lifecycle.ts",
    find: 'if (request !== "suspend" || !read.isMoving) return read;',
    replace: 'if (request !== "suspend" || !read.isMoving || read.isMoving) return read;',
    ...drains,
    named: "what its owner suspends meanwhile",
  },
  {
    what: "what has no room elsewhere is not suspended to move",
    file: "packages/gateway/src/lifecycle/drains.ts",
    find: "if (placement.fits(record) &&",
    replace: "if (placement &&",
    ...drains,
    named: "suspends nothing",
  },
  {
    what: "no fork begins on a host that does not answer",
    file: "packages/gateway/src/lifecycle/relocation.ts",
    find: "if (stays && (await this.#answers(record, call))) return record;",
    replace: "if (stays) return record;",
    project: "unit",
    test: "packages/gateway/src/lifecycle/fork-elsewhere.test.ts",
    named: "that is silent",
  },
  {
    what: "a fork waits for a host that left on purpose",
    file: "packages/gateway/src/lifecycle/relocation.ts",
    find: "if (leaseUntilMs > clock.nowMs() + gatewayLimits.hostLostMs) return true;",
    replace: "void leaseUntilMs;",
    project: "unit",
    test: "packages/gateway/src/lifecycle/fork-elsewhere.test.ts",
    named: "left on purpose",
  },
  {
    what: "a host that is back runs no machine of a sandbox that may be resumed elsewhere",
    file: "packages/gateway/src/lifecycle/host-comparison.ts",
    find: "record !== undefined && !(isDurable(record) && living.has(phase))",
    replace: "record !== undefined && !(isDurable(record) && phase === MachinePhase.UNSPECIFIED)",
    project: "unit",
    test: "packages/gateway/src/lifecycle/admission.test.ts",
    named: "resumed unheard",
  },
];
