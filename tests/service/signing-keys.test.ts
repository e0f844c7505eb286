// The operator changes the key that signs tokens: nobody is interrupted, and what the old key signed ends with it.
import { createPrivateKey, sign } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { startService, type TestService } from "../fixtures/service.ts";

const lifetimeSeconds = 15;
let service: TestService;
let client: Client;
let sandbox: TestSandbox;
let asleep: TestSandbox;
beforeAll(async () => {
  const env = { CLOCHE_WARM_POOL: "0", CLOCHE_TOKEN_LIFETIME_SECONDS: String(lifetimeSeconds) };
  service = await startService({ env });
  client = new Client(service.target());
  [sandbox, asleep] = await Promise.all([client.create(), client.create()]);
  await client.gateway("SuspendSandbox", { id: asleep.id });
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  await service?.destroy();
});

const folder = (): string => join(service.home, "keys", "signing");
const keyFiles = (): string[] => readdirSync(folder()).filter((name) => name.endsWith(".pem"));
const part = (token: string, index: number): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split(".")[index] ?? "", "base64url").toString()) as Record<string, unknown>;
const freshToken = async (of: TestSandbox): Promise<string> =>
  (await client.gateway<{ jwt: string }>("IssueDataPlaneToken", { sandbox_id: of.id })).jwt;
const statusWith = async (token: string, of = sandbox): Promise<number> =>
  (await client.call({ ...of, token }, "POST", "/v1/exec", { json: { cmd: ["true"] } })).status;

/** What somebody who kept the private key could sign: good for an hour. */
function forged(kid: string, privateKeyPem: string, like: string): string {
  const header = { ...part(like, 0), kid };
  const claims = { ...part(like, 1), exp: Math.floor(Date.now() / 1_000) + 3_600 };
  const text = [header, claims]
    .map((one) => Buffer.from(JSON.stringify(one)).toString("base64url"))
    .join(".");
  const key = createPrivateKey(privateKeyPem);
  return `${text}.${sign("RSA-SHA256", Buffer.from(text), key).toString("base64url")}`;
}

test("a rotation interrupts nobody, survives a crash, and ends with the old key's removal", async () => {
  const before = await freshToken(sandbox);
  const oldKid = part(before, 0)["kid"] as string;
  const oldPem = readFileSync(join(folder(), `${oldKid}.pem`), "utf8");
  const long = client.exec({ ...sandbox, token: before }, ["sh", "-c", "sleep 2; echo done"]);

  const said = await service.command(["rotate-signing-key", "--json"]);
  expect(said.code).toBe(0);
  const rotated = JSON.parse(said.stdout) as { kid: string; retiring: { kid: string; removed_at: string }[] };
  expect(rotated.kid).not.toBe(oldKid);
  expect(rotated.retiring.map(({ kid }) => kid)).toEqual([oldKid]);
  const removedAtMs = Date.parse(rotated.retiring[0]?.removed_at ?? "");
  expect(removedAtMs).toBeGreaterThan((part(before, 1)["exp"] as number) * 1_000);

  const after = await freshToken(sandbox);
  expect(part(after, 0)["kid"]).toBe(rotated.kid);
  expect(await statusWith(after)).toBe(200);
  const kept = forged(oldKid, oldPem, before);
  // What the old key signed is good until it is removed; a slow machine may come too late to see it.
  const goodUntilRemoved = async (token: string): Promise<void> => {
    const status = await statusWith(token);
    if (Date.now() < removedAtMs) expect(status).toBe(200);
  };
  await goodUntilRemoved(kept);
  expect((await long).stdout).toBe("done\n");

  await service.kill9();
  await service.start();
  await goodUntilRemoved(kept);
  const restarted = await freshToken(sandbox);
  expect(part(restarted, 0)["kid"]).toBe(rotated.kid);
  expect(await statusWith(restarted)).toBe(200);

  expect(await eventually(keyFiles, (files) => files.length === 1, 180_000)).toEqual([`${rotated.kid}.pem`]);
  expect(existsSync(join(folder(), `${oldKid}.retires.json`))).toBe(false);
  expect(
    await eventually(
      () => statusWith(kept),
      (status) => status === 401,
    ),
  ).toBe(401);
  expect(await statusWith(await freshToken(sandbox))).toBe(200);

  // One that slept through all of it knows the new key, and only that.
  await client.gateway("ResumeSandbox", { id: asleep.id });
  const awake = await eventually(
    async () => statusWith(await freshToken(asleep), asleep),
    (status) => status === 200,
    60_000,
  );
  expect(awake).toBe(200);
  expect(await statusWith(forged(oldKid, oldPem, await freshToken(asleep)), asleep)).toBe(401);
}, 300_000);

test("without a running service there is nothing to rotate", async () => {
  await service.stop();
  const said = await service.command(["rotate-signing-key"]);
  expect(said.code).toBe(3);
  expect(said.stderr).toContain("no service is running");
});
