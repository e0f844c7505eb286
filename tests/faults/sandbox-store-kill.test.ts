// Everything is killed at once (service, machine, mounts) while clients write into a sandbox's store through TLS; it starts
// cold from its disk, and what was answered is there.
import { afterAll, beforeAll, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { sweep } from "../fixtures/inventory.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { choices, seed } from "./seed.ts";
import { type Call, killAfter, StoreWriters } from "./store-writers.ts";

const rounds = 3;
let service: TestService;
let client: Client;
let sandbox: TestSandbox;

beforeAll(async () => {
  service = await startService();
  client = new Client(service.target());
  sandbox = await client.create({ name: "store" });
}, 400_000);
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect(await service?.destroy()).toEqual([]);
});

const call: Call = async (method, path, body) => {
  try {
    const answer = await client.call(sandbox, method, path, body === undefined ? {} : { json: body });
    if (answer.status === 503 || answer.status === 502) return undefined; // the edge outlived the machine for a moment
    return { status: answer.status, json: JSON.parse(answer.body.toString()) as Record<string, unknown> };
  } catch {
    return undefined;
  }
};

test("loses no answered write and halves no batch when everything is killed", async () => {
  onTestFailed(() => console.error(service.logTail()));
  const random = choices(seed);
  const writers = new StoreWriters(random);
  for (let round = 0; round < rounds; round += 1) {
    await killAfter(writers, call, random.below(150), () => {
      sweep(service.home);
    });
    await service.start();
    const answer = await eventually(
      () => call("GET", "/v1/store?limit=1"),
      (seen) => seen?.status === 200,
      60_000,
    );
    expect(answer?.status).toBe(200);
    await writers.verify(call);
  }
  expect(writers.answered).toBeGreaterThan(0);
}, 600_000);
