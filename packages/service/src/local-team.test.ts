import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../../gateway/src/testing/gateway-fixture.ts";
import { ensureLocalTeam } from "./local-team.ts";

let home: string;
const open: GatewayFixture[] = [];
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "cloche-local-team-"));
});
afterEach(async () => {
  for (const fixture of open.splice(0)) await fixture.close();
  rmSync(home, { recursive: true, force: true });
});

/** A gateway on a database of its own, which knows nothing of this home. */
async function gateway(): Promise<GatewayFixture> {
  const fixture = await openFixture();
  open.push(fixture);
  return fixture;
}
const keyIn = async (fixture: GatewayFixture): Promise<string> =>
  (await ensureLocalTeam(home, fixture.gateway, silentLog)).apiKey;
const statusWith = async (fixture: GatewayFixture, secret: string): Promise<number> =>
  (await fixture.call("ListSandboxes", {}, { secret })).status;

it("makes the key once, for root alone, and keeps it", async () => {
  const fixture = await gateway();
  const key = await keyIn(fixture);
  expect(await statusWith(fixture, key)).toBe(200);
  const file = join(home, "keys/api_key");
  expect([readFileSync(file, "utf8"), statSync(file).mode & 0o777]).toEqual([`${key}\n`, 0o600]);
  expect(await keyIn(fixture)).toBe(key);
});

it("makes it good again on a database that was put in the place of the one that knew it", async () => {
  const key = await keyIn(await gateway());
  const other = await gateway();
  expect(await statusWith(other, key)).toBe(401);
  expect(await keyIn(other)).toBe(key);
  expect(await statusWith(other, key)).toBe(200);
});

it("makes another where it was revoked, or the file holds none", async () => {
  const fixture = await gateway();
  const key = await keyIn(fixture);
  const { body } = await fixture.call(
    "ListApiKeys",
    {},
    { secret: key, service: "cloche.public.v1.ApiKeyService" },
  );
  await fixture.call(
    "RevokeApiKey",
    { id: body.keys[0].id },
    { secret: key, service: "cloche.public.v1.ApiKeyService" },
  );
  const second = await keyIn(fixture);
  expect([await statusWith(fixture, key), await statusWith(fixture, second)]).toEqual([401, 200]);
  writeFileSync(join(home, "keys/api_key"), "cloche_half");
  const third = await keyIn(fixture);
  expect(new Set([key, second, third]).size).toBe(3);
  expect(await statusWith(fixture, third)).toBe(200);
});
