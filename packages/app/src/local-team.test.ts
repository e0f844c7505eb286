import { generateKeyPairSync, randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog, systemClock } from "@cloche/base";
import { createGateway, type Database, type Gateway, openSqlite } from "@cloche/gateway";
import { HostService } from "@cloche/protocol/host";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { afterEach, beforeEach, expect, it } from "vitest";
import { ensureE2bKey, ensureLocalTeam } from "./local-team.ts";

let home: string;
const open: { gateway: Gateway; database: Database }[] = [];
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "cloche-local-team-"));
});
afterEach(async () => {
  for (const { gateway, database } of open.splice(0)) {
    await gateway.close();
    await database.close();
  }
  rmSync(home, { recursive: true, force: true });
});

/** A gateway on a database of its own, which knows nothing of this home, without a host. */
async function newGateway(): Promise<{ gateway: Gateway; database: Database }> {
  const database = await openSqlite(":memory:", systemClock);
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2_048 });
  const gateway = createGateway({
    database,
    host: createClient(
      HostService,
      createRouterTransport(() => undefined),
    ),
    signingKeys: [{ kid: "k", privateKeyPem: privateKey.export({ type: "pkcs8", format: "pem" }) as string }],
    config: {
      issuer: "cloche-test",
      baseDomain: "cloche.localhost",
      edgePort: 7443,
      dataPlaneUrl: "http://127.0.0.1:7081",
      tokenLifetimeSeconds: 3_600,
      corsOrigins: "*",
    },
    clock: systemClock,
    log: silentLog,
    randomBytes,
  });
  open.push({ gateway, database });
  return { gateway, database };
}
const keyOf = async (gateway: Gateway): Promise<string> =>
  (await ensureLocalTeam(home, gateway, silentLog)).apiKey;

it("makes the key once, for root alone, and keeps it", async () => {
  const { gateway } = await newGateway();
  const key = await keyOf(gateway);
  expect(await gateway.apiKeyState(key)).toBe("good");
  const file = join(home, "keys/api_key");
  expect([readFileSync(file, "utf8"), statSync(file).mode & 0o777]).toEqual([`${key}\n`, 0o600]);
  expect(await keyOf(gateway)).toBe(key);
  expect(await gateway.teams()).toHaveLength(1);
});

it("makes a key of the form that E2B's clients demand beside it, for the same team", async () => {
  const { gateway } = await newGateway();
  const [key, e2bKey] = [await keyOf(gateway), await ensureE2bKey(home, gateway, silentLog)];
  expect(e2bKey).toMatch(/^e2b_[0-9a-f]{40}$/);
  expect([await gateway.apiKeyState(key), await gateway.apiKeyState(e2bKey)]).toEqual(["good", "good"]);
  expect(await ensureE2bKey(home, gateway, silentLog)).toBe(e2bKey);
  expect(await gateway.teams()).toHaveLength(1);
  const second = await newGateway();
  expect(await ensureE2bKey(home, second.gateway, silentLog)).toBe(e2bKey);
  writeFileSync(join(home, "keys/e2b_api_key"), "e2b_half");
  expect(await ensureE2bKey(home, gateway, silentLog)).not.toBe(e2bKey);
});

it("makes it good again on a database that was put in the place of the one that knew it", async () => {
  const key = await keyOf((await newGateway()).gateway);
  const { gateway } = await newGateway();
  expect(await gateway.apiKeyState(key)).toBe("unknown");
  expect(await keyOf(gateway)).toBe(key);
  expect(await gateway.apiKeyState(key)).toBe("good");
});

it("makes another where it was revoked, or the file holds none", async () => {
  const { gateway, database } = await newGateway();
  const key = await keyOf(gateway);
  const [team] = await gateway.teams();
  const [record] = await database.apiKeys.list(team?.id ?? "", { limit: 10 });
  const audit = {
    id: "audit-x",
    teamId: team?.id ?? "",
    atMs: 1,
    actor: "test",
    action: "key.revoke",
    subject: record?.id ?? "",
    requestId: "",
    result: "ok",
    detail: "",
  };
  await database.apiKeys.revoke(team?.id ?? "", record?.id ?? "", 1, audit);
  const second = await keyOf(gateway);
  expect([await gateway.apiKeyState(key), await gateway.apiKeyState(second)]).toEqual(["refused", "good"]);
  writeFileSync(join(home, "keys/api_key"), "cloche_half");
  const third = await keyOf(gateway);
  expect(new Set([key, second, third]).size).toBe(3);
  expect(await gateway.apiKeyState(third)).toBe("good");
});
