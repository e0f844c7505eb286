/** The edge's own requests to an agent end in time, whatever the agent does. */
import type { ServerResponse } from "node:http";
import { portTunnelPath } from "@cloche/protocol";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { Rig, until } from "./testing/rig.ts";

const limits = { agentAnswerMs: 100 };

test("a port whose tunnel is never answered is 503, and the connection is given up", async () => {
  await using rig = await Rig.start({ limits });
  let asked = 0;
  let closed = 0;
  rig.agent.removeAllListeners("upgrade");
  rig.agent.on("upgrade", (request, socket) => {
    expect(request.url).toBe(`${portTunnelPath}3000`);
    socket.on("error", () => undefined);
    socket.once("end", () => (closed += 1));
    socket.resume();
    asked += 1;
  });
  rig.gateway.set({
    sandboxId: sandboxA,
    state: "SANDBOX_STATE_RUNNING",
    hostId: "host-1",
    agentHost: "127.0.0.1",
    agentPort: rig.agentPort,
    publicPorts: [3_000],
    epoch: 2n,
  });
  await until(async () => (await rig.ask({ label: `3000-${sandboxA}` })).status !== 401);
  const { status, body } = await rig.ask({ label: `3000-${sandboxA}` });
  expect([status, JSON.parse(body).code]).toEqual([503, "unavailable"]);
  await until(() => closed === asked);
});

test("an abort that is answered by a head alone is sent again", async () => {
  await using rig = await Rig.start({ limits });
  const asked: ServerResponse[] = [];
  rig.agent.removeAllListeners("request");
  rig.agent.on("request", (request, response) => {
    request.resume();
    if (request.url !== "/cloche/exec-abort") return;
    asked.push(response);
    if (asked.length === 1) response.writeHead(200, { "content-length": 10 }).flushHeaders();
    else response.end();
  });
  const exec = rig.request({ path: "/v1/exec", method: "POST" });
  exec.on("error", () => undefined);
  exec.end("{}");
  await until(async () => (await connections(rig)) === 1);
  exec.destroy();
  await until(() => asked.length === 2);
});

const connections = (rig: Rig): Promise<number> =>
  new Promise((resolve) => rig.agent.getConnections((_error, count) => resolve(count)));
