/** Two gateways on one PostgreSQL and one host, in real time: one starts while the other works, then both work. */
import { randomBytes } from "node:crypto";
import { silentLog, systemClock } from "@cloche/base";
import { createGateway, type Gateway, type HostClient, openPostgres } from "@cloche/gateway";
import { newSandboxId } from "@cloche/protocol";
import { afterAll, beforeAll, expect, it } from "vitest";
import { FakeHost } from "../../packages/gateway/src/testing/fake-host.ts";
import { postCall, testConfig, testSigningKey } from "../../packages/gateway/src/testing/gateway-fixture.ts";
import { type PostgresCluster, startPostgres } from "../fixtures/postgres.ts";

let cluster: PostgresCluster;
const close: (() => Promise<unknown>)[] = [];
beforeAll(async () => {
  cluster = await startPostgres();
});
afterAll(async () => {
  for (const one of close.toReversed()) await one();
  await cluster.stop();
});

const burst = 10;
const some = <T>(make: () => T): T[] => Array.from({ length: burst }, make);

async function start(url: string, owner: string, host: HostClient) {
  const database = await openPostgres(url, systemClock, undefined, { isShared: true });
  const gateway: Gateway = createGateway({
    database,
    host,
    owner,
    signingKeys: [testSigningKey()],
    config: testConfig,
    clock: systemClock,
    log: silentLog,
    randomBytes,
  });
  await gateway.start();
  const { port } = await gateway.listen("127.0.0.1", 0);
  close.push(async () => {
    await gateway.close();
    await database.close();
  });
  return { database, gateway, port };
}

it("make each sandbox once, and none of them is taken for broken", { timeout: 60_000 }, async () => {
  const url = await cluster.newDatabase();
  const host = new FakeHost();
  /** To both gateways alike. */
  const offer = () => host.offer(some(() => ({ sandboxId: newSandboxId(randomBytes), name: "made-ahead" })));
  const mayAnswer = Promise.withResolvers<void>();
  const slow: HostClient = {
    ...host.client,
    async createMachine(...call) {
      const machine = await host.client.createMachine(...call);
      await mayAnswer.promise;
      return machine;
    },
  };
  const a = await start(url, "a", slow);
  const team = await a.gateway.addTeam("testers");
  const { secret } = await a.gateway.createApiKey(team.id, "test");
  const creates = ({ port }: { port: number }) => some(() => postCall(port, "CreateSandbox", {}, { secret }));

  const first = creates(a);
  await expect.poll(() => host.machines.size, { timeout: 20_000 }).toBe(burst);
  const b = await start(url, "b", host.client);
  await expect.poll(() => b.gateway.ready().then(() => "ready", String)).toBe("ready");
  await b.gateway.settled();
  offer();
  const second = [...creates(a), ...creates(b)];
  mayAnswer.resolve();
  const answers = await Promise.all([...first, ...second]);
  await Promise.all([a.gateway.settled(), b.gateway.settled()]);

  expect(answers.map(({ status }) => status)).toEqual(Array(3 * burst).fill(200));
  const records = await b.database.sandboxes.all();
  expect(records.map(({ state }) => state)).toEqual(Array(3 * burst).fill("SANDBOX_STATE_RUNNING"));
  expect(records.filter(({ name }) => name === "made-ahead")).toHaveLength(burst);
  expect(new Set(records.map(({ ordinal }) => ordinal)).size).toBe(3 * burst);
  const calls = host.calls.filter((call) => call.startsWith("createMachine "));
  expect([calls.length, new Set(calls).size]).toEqual([3 * burst, 3 * burst]);
  expect(host.calls.filter((call) => call.startsWith("destroyMachine "))).toEqual([]);
});
