// Defences of what several gateways and hosts share (defences.ts).
import type { Defence } from "./defence.ts";

const directory = { project: "unit", test: "packages/gateway/src/hosts/host-directory.test.ts" } as const;
const hosts = { project: "contracts", test: "tests/contracts/hosts.test.ts" } as const;

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
    find: "this.#now = databaseNowMs(db);",
    replace: "this.#now = sql<number>`${Date.UTC(2026, 0, 1)} + 0`; void databaseNowMs;",
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
];
