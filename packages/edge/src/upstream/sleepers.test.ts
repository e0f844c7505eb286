import type { ServerResponse } from "node:http";
import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { Rig, until } from "../testing/rig.ts";

/**
 * Sets the doze number; resolves when the edge has the route, because it then has the later route of another sandbox.
 */
async function set(rig: Rig, doze: number): Promise<void> {
  rig.gateway.set({ sandboxId: sandboxA, doze });
  rig.gateway.set({ sandboxId: sandboxB, state: "SANDBOX_STATE_SUSPENDED" });
  await until(async () => (await rig.ask({ label: sandboxB })).status === 503);
}

test("one that dozes is roused before anything is sent to it, once for many requests", async () => {
  await using rig = await Rig.start();
  expect((await rig.ask()).status).toBe(200);
  await set(rig, 1);
  const awake = Promise.withResolvers<void>();
  const { onRouse } = rig.gateway;
  rig.gateway.onRouse = async (sandboxId) => {
    await awake.promise;
    await onRouse(sandboxId);
  };
  const headers = await rig.bearer();
  const asked = Promise.all(["/v1/1", "/v1/2", "/v1/3"].map((path) => rig.ask({ path, headers })));
  await until(() => rig.gateway.roused.length > 0);
  expect(rig.seen).toHaveLength(1);
  awake.resolve();
  expect((await asked).map(({ status }) => status)).toEqual([200, 200, 200]);
  expect((await rig.ask()).status).toBe(200);
  expect(new Set(rig.gateway.roused)).toEqual(new Set([sandboxA]));
});

test("one that is being asked when it wants to doze is roused at once", async () => {
  await using rig = await Rig.start();
  let answer: ServerResponse | undefined;
  rig.onAgent = (_request, response) => void (answer = response);
  const asked = rig.ask();
  await until(() => answer !== undefined);
  await set(rig, 1);
  await until(() => rig.gateway.roused.length > 0);
  answer?.end("answered");
  expect((await asked).body).toBe("answered");
});

test("one that is not asked is left alone, also by requests that are not for its agent", async () => {
  await using rig = await Rig.start();
  expect((await rig.ask()).status).toBe(200);
  await set(rig, 1);
  expect((await rig.ask({ path: "/v1/checkpoint/list" })).body).toContain("host");
  expect(rig.gateway.roused).toEqual([]);
});

test("one that cannot be roused is 503, and the next request tries again", async () => {
  await using rig = await Rig.start();
  await set(rig, 1);
  const { onRouse } = rig.gateway;
  rig.gateway.onRouse = () => Promise.reject(new ConnectError("no", Code.Unavailable));
  const headers = await rig.bearer();
  const refused = await rig.ask({ headers });
  expect([refused.status, refused.headers["retry-after"]]).toEqual([503, "1"]);
  rig.gateway.onRouse = onRouse;
  expect((await rig.ask({ headers })).status).toBe(200);
});
