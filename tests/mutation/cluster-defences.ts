// Defences of what several gateways and hosts share (defences.ts).
import type { Defence } from "./defence.ts";

const directory = { project: "unit", test: "packages/gateway/src/hosts/host-directory.test.ts" } as const;
const leases = {
  project: "unit",
  test: "packages/gateway/src/lifecycle/operation-leases.test.ts",
} as const;
const follower = {
  project: "unit",
  test: "packages/gateway/src/lifecycle/change-follower.test.ts",
} as const;
const gateways = { project: "contracts", test: "tests/contracts/two-gateways.test.ts" } as const;
const hosts = { project: "contracts", test: "tests/contracts/cluster.test.ts" } as const;

export const clusterDefences: readonly Defence[] = [
  {
    what: "no host is lost while most leases have run out",
    file: "packages/gateway/src/database/hosts.ts",
    find: "${this.#countExpired} * 2 <= count(*)",
    replace: "${this.#countExpired} <= count(*)",
    ...hosts,
    named: "more than half",
  },
  {
    what: "the lease of a lost host cannot be renewed",
    file: "packages/gateway/src/database/hosts.ts",
    find: `      .where("generation", "=", generation)
      .where("lost_at", "is", null)`,
    replace: `      .where("generation", "=", generation)`,
    ...hosts,
    named: "until they are declared lost",
  },
  {
    what: "leases run by the database's clock",
    file: "packages/gateway/src/database/hosts.ts",
    find: "return fromDatabaseNow(this.#db, ms);",
    replace: "return sql<number>`${Date.UTC(2026, 0, 1) + ms} + 0`; void fromDatabaseNow;",
    ...hosts,
    named: "by the database's clock",
  },
  {
    what: "a gateway that was away declares no host lost",
    file: "packages/gateway/src/hosts/host-directory.ts",
    find: "if (isGap || this.#watchingSinceMs === undefined)",
    replace: "if (this.#watchingSinceMs === undefined)",
    ...directory,
    named: "stood still",
  },
  {
    what: "after an outage of the database hosts have the time to renew",
    file: "packages/gateway/src/hosts/host-directory.ts",
    find: `      await this.#look().catch((error: unknown) => {
        this.#watchingSinceMs = undefined;`,
    replace: `      await this.#look().catch((error: unknown) => {`,
    ...directory,
    named: "the database was away",
  },
  {
    what: "a host registers and renews for itself only",
    file: "packages/gateway/src/hosts/registry-service.ts",
    find: "if (caller === undefined || caller !== id)",
    replace: "if (caller === id && false)",
    ...directory,
    named: "for itself only",
  },
  {
    what: "an operation is taken over only when its lease is over",
    file: "packages/gateway/src/database/operations.ts",
    find: '.where("lease_until", "<=", fromDatabaseNow(tx));',
    replace: '.where("lease_until", ">=", 0);',
    ...hosts,
    named: "only when their lease is over",
  },
  {
    what: "a former owner of an operation turns nothing back",
    file: "packages/gateway/src/database/operations.ts",
    find: '.where("attempt", "=", operation.attempt)',
    replace: "",
    ...hosts,
    named: "former owner",
  },
  {
    what: "a former owner of an operation ends nothing",
    file: "packages/gateway/src/database/sandboxes.ts",
    find: '.where("attempt", "=", write.end.attempt)',
    replace: "",
    ...hosts,
    named: "former owner",
  },
  {
    what: "the operations of a gateway that is gone are taken over",
    file: "packages/gateway/src/lifecycle/operation-leases.ts",
    find: "      runner.goOn(operation);",
    replace: "      void operation;",
    ...leases,
    named: "suspend is finished once",
  },
  {
    what: "a gateway lets go of operations before their lease is over",
    file: "packages/gateway/src/lifecycle/operation-leases.ts",
    find: 'if (renewed === "over") return this.#dropAll();',
    replace: 'if (renewed === "over") return;',
    ...leases,
    named: "before they are over",
  },
  {
    what: "a gateway does not go on with what another is about",
    file: "packages/gateway/src/lifecycle/reconciler.ts",
    find: 'if (owner === "") runner.goOn(operation);',
    replace: "runner.goOn(operation);",
    ...gateways,
  },
  {
    what: "a look at a machine counts only while its record stays",
    file: "packages/gateway/src/lifecycle/reconciler.ts",
    find: "if (record?.generation !== before?.generation) return this.#later(sandboxId);",
    replace: "void before;",
    ...leases,
    named: "overtook",
  },
  {
    what: "a machine made ahead is one gateway's only",
    file: "packages/gateway/src/rpc/sandbox-service.ts",
    find: "if (!(error instanceof IdTaken) ||",
    replace: "if (error instanceof IdTaken ||",
    ...gateways,
  },
  {
    what: "a change that is committed late is read all the same",
    file: "packages/gateway/src/lifecycle/change-follower.ts",
    find: "this.#missing.set(passed, nowMs);",
    replace: "void nowMs;",
    ...follower,
    named: "out of order",
  },
  {
    what: "no older record is told after a newer one",
    file: "packages/gateway/src/lifecycle/records.ts",
    find: "if (!told.has(id)) this.#tell(id, records.get(id));",
    replace: "this.#tell(id, records.get(id));",
    ...follower,
    named: "read again",
  },
  {
    what: "who waits hears what another gateway wrote",
    file: "packages/gateway/src/gateway.ts",
    find: "hear: (ids) => records.hear(ids),",
    replace: "hear: async () => undefined,",
    ...follower,
    named: "two gateways",
  },
  {
    what: "every write of a record is in the log of changes",
    file: "packages/gateway/src/database/sandboxes.ts",
    find: "        await this.#changes?.note(tx, ids);",
    replace: "        void ids;",
    ...hosts,
    named: "names what was written",
  },
];
