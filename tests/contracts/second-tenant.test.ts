/**
 * What a second tenant gets while one tenant does harm in the process that all share (SECURITY.md, A bad client harms
 * nobody else). The real gateway, edge, checkpoint routes and endpoint for E2B's clients run in this thread, the tenant
 * who does harm in another (one-tenant.ts). Measured is the processor time of this thread for each answer that the second tenant
 * gets, as a multiple of the same without harm. Other work of the computer does not count.
 */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { Agent, createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { Worker } from "node:worker_threads";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { newSandboxId } from "@cloche/protocol";
import { HostService } from "@cloche/protocol/host";
import { nodeFetch } from "@cloche/sdk/node";
import { afterAll, beforeAll, expect, it } from "vitest";
import { AccessTokens } from "../../packages/e2b/src/access-token.ts";
import { Envd } from "../../packages/e2b/src/envd/envd.ts";
import { Sandboxes } from "../../packages/e2b/src/envd/sandboxes.ts";
import { sandboxA, sandboxB } from "../../packages/edge/src/testing/fake-gateway.ts";
import { baseDomain, Rig } from "../../packages/edge/src/testing/rig.ts";
import { signToken, testKeys } from "../../packages/host/src/testing/data-plane-caller.ts";
import { type GatewayFixture, openFixture } from "../../packages/gateway/src/testing/gateway-fixture.ts";
import { FakeWorld } from "../../packages/host/src/testing/fake-world.ts";
import type { Harm, Orders } from "./one-tenant.ts";

/** What `messages` sends in all. */
const messagesBytes = 20_000 * 7;
/** An answer may cost this many times more than without harm. Defended it is 1 to 15 times, undefended 100 and more. */
const most = 40;
const keysUsed = 20_000;
const auditEntries = 1_000;
const agent = new Agent({ keepAlive: true });
let world: FakeWorld;
let rig: Rig;
let e2b: Server;
let gateway: GatewayFixture;

beforeAll(async () => {
  gateway = await openFixture();
  world = await FakeWorld.open();
  await world.start();
  await hostClient().setVerificationKeys(testKeys);
  rig = await Rig.start({
    hostDataPlane: (request, response, { sandboxId, requestId }) =>
      world.host.dataPlane(request, response, { sandboxId, requestId }),
  });
  rig.onAgent = (_request, response) => void response.end("ok");
  const envd = new Envd(sandboxesOfManyKeys());
  e2b = createServer((request, response) => void envd.answer(request, response, undefined));
  await once(e2b.listen(0, "127.0.0.1"), "listening");
});
afterAll(async () => {
  agent.destroy();
  e2b.closeAllConnections();
  e2b.close();
  await rig[Symbol.asyncDispose]();
  await world.close();
  await gateway.close();
});

/** A team with a long audit log; its key. */
async function addTeamWithEntries(name: string): Promise<string> {
  const { id: teamId } = await gateway.gateway.addTeam(name);
  const { secret } = await gateway.gateway.createApiKey(teamId, "key");
  const same = { teamId, actor: "key-a", action: "sandbox.create", subject: "sbx-a", result: "ok" };
  for (let at = 0; at < auditEntries; at += 1) {
    const own = { id: `aud-${name}-${at}`, atMs: Date.now() + at, requestId: `request-${at}` };
    await gateway.database.audit.insert({ ...same, ...own, detail: "x".repeat(300) });
  }
  return secret;
}

const hostClient = () =>
  createClient(
    HostService,
    createRouterTransport((router) => void router.service(HostService, world.host.service)),
  );

/** As after a team used many keys. */
function sandboxesOfManyKeys(): Sandboxes {
  const sandboxes = new Sandboxes({
    gatewayUrl: "http://127.0.0.1:1",
    fetch: nodeFetch({}),
    domain: baseDomain,
    tokens: new AccessTokens(Buffer.alloc(32, 1)),
    ownKey: "cloche_own",
    teamOf: async () => undefined,
  });
  for (let key = 0; key < keysUsed; key += 1)
    sandboxes.issueToken(
      `cloche_${key}`,
      newSandboxId((length) => new Uint8Array(randomBytes(length))),
    );
  return sandboxes;
}

/** Processor time of this thread. */
function cpuMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1_000;
}

/** Gets an answer as the second tenant. */
type AskAsSecond = () => Promise<{ status: number }>;

async function askEdge(): Promise<AskAsSecond> {
  const headers = await rig.bearer(sandboxA);
  return () => rig.askPlain(`/sandboxes/${sandboxA}/v1/x`, { headers, agent });
}

async function askList(): Promise<AskAsSecond> {
  const secret = await addTeamWithEntries("second");
  return () => gateway.call("ListAuditEntries", { page_size: auditEntries }, { secret });
}

/** Asks until this thread has used `forMs`, or the harm is over; the time for each answer. */
async function costOfAnswer(ask: AskAsSecond, forMs: number, isOver = () => false): Promise<number> {
  const began = cpuMs();
  let answers = 0;
  while (cpuMs() - began < forMs && !isOver()) {
    expect((await ask()).status).toBe(200);
    answers += 1;
  }
  return (cpuMs() - began) / answers;
}

async function authorizationFor(harm: Harm): Promise<string> {
  if (harm === "json") return `Bearer ${signToken(sandboxB)}`;
  if (harm === "lists") return `Bearer ${await addTeamWithEntries("one")}`;
  return (await rig.bearer(sandboxB)).authorization;
}

async function startHarm(harm: Harm, moved: SharedArrayBuffer): Promise<Worker> {
  const orders: Orders = {
    harm,
    port: rig.plainPort,
    tlsPort: rig.port,
    e2bPort: (e2b.address() as AddressInfo).port,
    gatewayPort: gateway.listener.port,
    ca: rig.ca,
    baseDomain,
    sandboxId: sandboxB,
    authorization: await authorizationFor(harm),
    moved,
  };
  const worker = new Worker(new URL("one-tenant.ts", import.meta.url), { workerData: orders });
  const [agentPort] = (await once(worker, "message")) as [number];
  rig.gateway.set({
    sandboxId: sandboxB,
    state: "SANDBOX_STATE_RUNNING",
    hostId: "host-1",
    agentHost: "127.0.0.1",
    agentPort,
    allPortsPublic: true,
    epoch: rig.gateway.routeOf(sandboxB).epoch + 1n,
  });
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- to a thread
  worker.postMessage("begin");
  await once(worker, "message");
  return worker;
}

it.each<[Harm, string]>([
  ["json", "large JSON to the checkpoint routes"],
  ["chunks-up", "an upload in chunks of one byte"],
  ["frames-up", "an upload in DATA frames of one byte"],
  ["windows", "a flood of window updates"],
  ["chunks-down", "an answer of a port's server in chunks of one byte"],
  ["early", "endless 1xx answers of a port's server"],
  ["messages", "WebSocket messages of one byte, both ways"],
  ["signatures", "searches for the signer of an E2B URL"],
  ["lists", "lists that are not read"],
])("%s: a second tenant is served during %s", async (harm) => {
  const ask = await (harm === "lists" ? askList() : askEdge());
  await costOfAnswer(ask, 200);
  const calm = await costOfAnswer(ask, 400);
  const moved = new Int32Array(new SharedArrayBuffer(4));
  const worker = await startHarm(harm, moved.buffer);
  try {
    const isOver = (): boolean => harm === "messages" && Atomics.load(moved, 0) >= messagesBytes;
    const before = Atomics.load(moved, 0);
    const harmed = await costOfAnswer(ask, 1_000, isOver);
    expect(Atomics.load(moved, 0), "the harm went on").toBeGreaterThan(before);
    expect(harmed / calm).toBeLessThan(most);
  } finally {
    await worker.terminate();
  }
});
