/** When a suspension is answered, and what its caller may rely on then. */
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { newSandboxId } from "@cloche/protocol";
import { HostService, MachinePhase } from "@cloche/protocol/host";
import { randomBytes } from "node:crypto";
import { afterEach, beforeEach, expect, it } from "vitest";
import { FakeWorld } from "../testing/fake-world.ts";

let world: FakeWorld;
const id = newSandboxId(randomBytes);
const client = () =>
  createClient(
    HostService,
    createRouterTransport(({ service }) => service(HostService, world.host.service)),
  );

beforeEach(async () => {
  world = await FakeWorld.open();
  await world.start();
  const spec = { sandboxId: id, teamId: "team-t", name: "t", template: "base" };
  await client().createMachine({ spec: { ...spec, cpus: 1, memoryMb: 256, diskMb: 1_024 } });
});
afterEach(async () => {
  world.failing.clear();
  await world.host.stop({ suspend: false });
  await world.reboot();
});

it("answers once the image is durable and no process is left, before the rest is freed", async () => {
  world.failing.add("driver stopMachine");
  const { phase } = await client().suspendMachine({ sandboxId: id });
  expect(phase).toBe(MachinePhase.SUSPENDED);
  expect(world.machines.size).toBe(0);
});

it("frees the rest before a resume that was asked for meanwhile", async () => {
  world.effects.length = 0;
  await client().suspendMachine({ sandboxId: id });
  await client().resumeMachine({ sandboxId: id });
  const [freed, restored] = ["driver stopMachine", "driver restore"].map((name) =>
    world.effects.indexOf(name),
  );
  expect(freed).toBeGreaterThan(-1);
  expect(freed).toBeLessThan(restored ?? -1);
});

it("resumes a machine of which the rest could not be freed", async () => {
  world.failing.add("driver stopMachine");
  await client().suspendMachine({ sandboxId: id });
  world.failing.clear();
  const { phase } = await client().resumeMachine({ sandboxId: id });
  expect(phase).toBe(MachinePhase.RUNNING);
});
