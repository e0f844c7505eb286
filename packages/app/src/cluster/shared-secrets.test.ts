/** What the gateways of a cluster share through the database: keys, certificates, the API key. */
import { randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog, systemClock } from "@cloche/base";
import { FakeClock } from "@cloche/base/testing";
import { createGateway, type Database, type HostClient, openSqlite } from "@cloche/gateway";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { SigningKeyFile } from "../setup/key-store.ts";
import type { Identity } from "@cloche/trust";
import { membersIn } from "./cluster-part.ts";
import { sharedEdgeCertificate } from "./edge-certificate.ts";
import { ensureSharedApiKey } from "./shared-api-key.ts";
import { readSecret, SharedSecrets } from "./shared-secrets.ts";
import { KeyRotation } from "../key-rotation.ts";
import { sharedSigningKeys } from "./shared-signing-keys.ts";

const secret = Buffer.alloc(32, 1);
let folder: string;
let database: Database;
let shared: SharedSecrets;
const close: (() => Promise<unknown>)[] = [];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-shared-"));
  database = await openSqlite(":memory:", systemClock);
  shared = new SharedSecrets(database.secrets, secret);
});
afterEach(async () => {
  for (const one of close.splice(0)) await one();
  await database.close();
  await rm(folder, { recursive: true });
});

describe("the operator's secret", () => {
  it("is the file without the end of its line, and refused where it is too short", async () => {
    const file = join(folder, "secret");
    await expect(readSecret(file)).rejects.toThrow(/CLOCHE_CLUSTER_SECRET_FILE: .* cannot be read/);
    await writeFile(file, `${"a".repeat(31)}\n`);
    await expect(readSecret(file)).rejects.toThrow(/fewer than 32 bytes; make it once with/);
    await writeFile(file, `${"a".repeat(32)}\n`);
    expect(Buffer.from(await readSecret(file)).toString()).toBe("a".repeat(32));
  });
});

describe("the ids of members", () => {
  const host: Identity = { role: "host", id: "h-1" };

  it("belong to the first key of two at once, until its certificate is over or it is forgotten", async () => {
    const members = membersIn(database.secrets);
    const taken = await Promise.all(["a", "b"].map((key) => members.take(host, key, 1_000, 2_000)));
    expect(taken.filter(Boolean)).toHaveLength(1);
    const [first, second] = taken[0] ? ["a", "b"] : ["b", "a"];
    expect(await members.mayHave(host, second as string, 1_500)).toBe(false);
    expect(await members.take(host, first as string, 1_500, 3_000)).toBe(true);
    expect(await members.take(host, second as string, 2_500, 9_000)).toBe(false);
    expect(await members.take({ ...host, id: "h-10" }, second as string, 2_500, 9_000)).toBe(true);
    expect(await members.take({ ...host, role: "edge" }, second as string, 2_500, 9_000)).toBe(true);
    expect(await members.mayHave(host, second as string, 3_001)).toBe(true);
    expect(await members.forget(host)).toBe(true);
    expect(await members.forget(host)).toBe(false);
    expect(await members.take(host, second as string, 2_500, 9_000)).toBe(true);
  });
});

describe("shared secrets", () => {
  it("lie sealed, and are one for all gateways", async () => {
    const other = new SharedSecrets(database.secrets, secret);
    const ids = await Promise.all([shared.installation(), other.installation()]);
    expect(ids[0]).toBe(ids[1]);
    const [row] = await database.secrets.list("installation");
    expect(Buffer.from(row?.value ?? "", "base64").toString("latin1")).not.toContain(ids[0]);
    const stranger = new SharedSecrets(database.secrets, Buffer.alloc(32, 2));
    await expect(stranger.installation()).rejects.toThrow(/another secret/);
  });

  it("that are old are renewed once, whoever comes first", async () => {
    await shared.add("x", "old");
    let made = 0;
    const renew = () =>
      shared.renew(
        "x",
        async (value) => value === "old",
        async () => `new ${(made += 1)}`,
      );
    const renewed = await Promise.all([renew(), renew(), renew()]);
    expect(new Set(renewed).size).toBe(1);
    expect(await renew()).toBe(renewed[0]);
  });
});

it("the edges' certificate is one for all, of its domain, and made anew before its end", async () => {
  const nowMs = Date.now();
  const [one, two] = await Promise.all([1, 2].map(() => sharedEdgeCertificate(shared, "a.example", nowMs)));
  expect(one).toEqual(two);
  const other = await sharedEdgeCertificate(shared, "b.example", nowMs);
  expect([other.authority === one?.authority, other.key === one?.key]).toEqual([true, false]);
  const later = await sharedEdgeCertificate(shared, "a.example", nowMs + 370 * 86_400_000);
  expect([later.authority === one?.authority, later.certificate === one?.certificate]).toEqual([true, false]);
});

describe("signing keys of several gateways", () => {
  const lifetimeSeconds = 3_600;
  let clock: FakeClock;
  /** A gateway's keys, and what it uses now: kids, the one that signs first. */
  async function gateway() {
    const keys = new KeyRotation({
      store: sharedSigningKeys(shared),
      tokenLifetimeSeconds: lifetimeSeconds,
      clock,
      log: silentLog,
    });
    const kids = (of: readonly SigningKeyFile[]): string[] => of.map(({ kid }) => kid);
    const state = { uses: kids(await keys.current()), isAway: false, tellsMs: 0, isTelling: false };
    keys.start(async (next) => {
      state.isTelling = true;
      if (state.tellsMs > 0) await clock.sleep(state.tellsMs);
      if (state.isAway) throw new Error("away");
      state.uses = kids(next);
    });
    close.push(async () => {
      const closed = keys.close();
      await clock.advance(60_000);
      await closed;
    });
    return { keys, state };
  }
  beforeEach(() => {
    clock = new FakeClock();
  });

  it("are the same, made once", async () => {
    const [a, b] = await Promise.all([gateway(), gateway()]);
    expect(a.state.uses).toHaveLength(1);
    expect(a.state.uses).toEqual(b.state.uses);
  });

  it("sign with a new one only when all gateways have told of it, and forget the old one in time", async () => {
    const [a, b] = [await gateway(), await gateway()];
    const [old = ""] = a.state.uses;
    const rotating = a.keys.rotate();
    await expect.poll(() => a.state.uses.length).toBe(2);
    const next = a.state.uses.find((kid) => kid !== old) ?? "";
    // Known, and not used yet.
    expect(a.state.uses).toEqual([old, next]);
    await clock.advance(5_000);
    await expect.poll(() => b.state.uses).toEqual([old, next]);
    await clock.advance(15_000);
    const { kid, retiring } = await rotating;
    expect([kid, retiring.map((one) => one.kid)]).toEqual([next, [old]]);
    await expect
      .poll(() => [a.state.uses, b.state.uses])
      .toEqual([
        [next, old],
        [next, old],
      ]);
    await clock.advance(lifetimeSeconds * 1_000);
    await expect.poll(() => a.state.uses).toEqual([next, old]);
    await clock.advance(15_000);
    await expect.poll(() => [a.state.uses, b.state.uses]).toEqual([[next], [next]]);
  });

  it("are told again when that failed", async () => {
    const [a, b] = [await gateway(), await gateway()];
    b.state.isAway = true;
    const rotating = a.keys.rotate();
    await expect.poll(() => a.state.uses.length).toBe(2);
    await clock.advance(20_000);
    await rotating;
    expect(b.state.uses).toHaveLength(1);
    b.state.isAway = false;
    await clock.advance(5_000);
    await expect.poll(() => b.state.uses).toEqual(a.state.uses);
  });

  it.each([
    ["taken back at once", 0, 1],
    ["kept where other gateways sign with it by then", 12_000, 2],
  ])("that the others cannot be told of are %s", async (_what, tellsMs, left) => {
    const { keys, state } = await gateway();
    Object.assign(state, { isAway: true, tellsMs });
    const failed = expect(keys.rotate()).rejects.toThrow("away");
    await expect.poll(() => state.isTelling).toBe(true);
    await clock.advance(tellsMs);
    await failed;
    expect(await shared.list("signing-key/")).toHaveLength(left);
    state.tellsMs = 0;
  });
});

it("the operator's API key is one for all gateways, of one team", async () => {
  const keys = new KeyRotation({
    store: sharedSigningKeys(shared),
    tokenLifetimeSeconds: 60,
    clock: systemClock,
    log: silentLog,
  });
  const signingKeys = await keys.current();
  const gatewayOf = (owner: string) =>
    createGateway({
      database,
      host: {} as HostClient,
      owner,
      signingKeys,
      config: {
        issuer: "cloche-test",
        baseDomain: "a.example",
        edgePort: 443,
        dataPlaneUrl: "https://a.example",
        tokenLifetimeSeconds: 60,
        corsOrigins: "*",
      },
      clock: systemClock,
      log: silentLog,
      randomBytes,
    });
  const [a, b] = [gatewayOf("a"), gatewayOf("b")];
  const [one, two] = await Promise.all([
    ensureSharedApiKey(join(folder, "a"), a, shared),
    ensureSharedApiKey(join(folder, "b"), b, shared),
  ]);
  expect(one).toBe(two);
  expect(await b.apiKeyState(one)).toBe("good");
  expect(await a.teams()).toHaveLength(1);
});
