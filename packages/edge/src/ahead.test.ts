/** Connections to agents whose sandboxes are about to run. */
import { expect, test } from "vitest";
import { sandboxB } from "./testing/fake-gateway.ts";
import { Rig, until } from "./testing/rig.ts";

/** A rig whose second sandbox, at the same agent, is being made. */
async function rigWithComing(options: Parameters<typeof Rig.startChannel>[0] = {}, isFirstLost = false) {
  const rig = await Rig.startChannel(options);
  if (isFirstLost) rig.agent.once("connection", (socket) => socket.destroy());
  const counts = { opened: 0, open: 0, secure: 0 };
  rig.agent.on("connection", (socket) => {
    counts.opened += 1;
    counts.open += 1;
    socket.on("close", () => (counts.open -= 1));
  });
  rig.agent.on("secureConnection", () => (counts.secure += 1));
  const { agentHost, agentPort, channelKey, hostId } = rig.gateway.routeOf("sbx-aaaaaaaaaaaaaaaaaaaa");
  const made = { sandboxId: sandboxB, agentHost, agentPort, channelKey, hostId, epoch: 3n };
  rig.gateway.set({ ...made, state: "SANDBOX_STATE_CREATING", isAhead: true });
  const runs = () => rig.gateway.set({ sandboxId: sandboxB, state: "SANDBOX_STATE_RUNNING", isAhead: false });
  const ask = async () =>
    rig
      .ask({ label: sandboxB, path: "/v1/store", headers: await rig.bearer(sandboxB) })
      .then(({ status }) => status);
  return { rig, counts, runs, ask };
}

test("the first request finds a connection that was opened while the sandbox was made", async () => {
  const { rig, counts, runs, ask } = await rigWithComing();
  await using _ = rig;
  await until(() => counts.secure === 1);
  runs();
  expect(await ask()).toBe(200);
  expect(await ask()).toBe(200);
  expect(counts.opened).toBe(1);
  expect(rig.seen.map(({ url }) => url)).toEqual(["/healthz", "/v1/store", "/v1/store"]);
});

test("a request waits for the handshake under way, and the next one opens its own connection", async () => {
  const { rig, counts, runs, ask } = await rigWithComing();
  await using _ = rig;
  runs();
  expect(await Promise.all([ask(), ask()])).toEqual([200, 200]);
  expect(counts.opened).toBeLessThanOrEqual(2);
});

test("a request gets a connection of its own where the one opened ahead fails", async () => {
  const { rig, counts, runs, ask } = await rigWithComing({}, true);
  await using _ = rig;
  runs();
  expect(await ask()).toBe(200);
  expect(counts).toMatchObject({ opened: 2, secure: 1 });
});

test("a request does not wait for an agent that does not answer the first one", async () => {
  const { rig, counts, runs, ask } = await rigWithComing({ limits: { agentAheadMs: 50 } });
  await using _ = rig;
  rig.onAgent = (request, response) => {
    if (request.url !== "/healthz") response.end("{}");
  };
  runs();
  expect(await ask()).toBe(200);
  await until(() => counts.open === 1);
  expect(counts.opened).toBe(2);
});

test("an agent on another computer is connected to by its first request", async () => {
  const { rig, counts } = await rigWithComing();
  await using _ = rig;
  await until(() => counts.secure === 1);
  rig.gateway.set({ sandboxId: sandboxB, hostAddress: "127.0.0.1:9", epoch: 4n, isAhead: true });
  await until(() => counts.open === 0);
  expect(counts.opened).toBe(1);
});
