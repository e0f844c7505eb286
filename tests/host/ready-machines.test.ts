import { randomBytes } from "node:crypto";
import { newSandboxId } from "@cloche/protocol";
import { MachineEvent_Kind, type ReadyMachine } from "@cloche/protocol/host";
import { afterAll, beforeAll, expect, it } from "vitest";
import { HostLab } from "./host-lab.ts";

let lab: HostLab;
beforeAll(async () => {
  lab = await HostLab.open(1);
});
afterAll(async () => {
  await lab.destroyAll();
  await lab.close();
});

/** The first offer that names one. */
async function offered(): Promise<ReadyMachine> {
  const enough = new AbortController();
  try {
    for await (const event of lab.client.watchMachines({}, { signal: enough.signal })) {
      const [ready] = event.kind === MachineEvent_Kind.READY ? event.ready : [];
      if (ready !== undefined) return ready;
    }
    throw new Error("the stream ended");
  } finally {
    enough.abort();
  }
}

const identity = (id: string): Promise<string> =>
  lab.exec(
    id,
    "sh",
    "-c",
    "hostname; cat /etc/hostname; grep -c $(hostname) /etc/hosts; cat /etc/machine-id",
  );

it("a machine made ahead is the sandbox that it was offered as, or any other's that is told so", async () => {
  const machineIds = new Set<string>();
  for (const [other, name] of [
    [false, undefined],
    [false, "mine"],
    [true, "another"],
  ] as const) {
    const { sandboxId, name: offeredName, cpus, memoryMb, diskMb } = await offered();
    const spec = lab.spec({
      sandboxId: other ? newSandboxId(randomBytes) : sandboxId,
      name: name ?? offeredName,
      env: name === undefined ? {} : { COLOUR: "green" },
      cpus,
      memoryMb,
      diskMb,
    });
    await lab.client.createMachine({ spec });
    const [kernel, file, hosts, machineId = ""] = (await identity(spec.sandboxId)).split("\n");
    expect([kernel, file, hosts]).toEqual([spec.name, spec.name, "1"]);
    expect(machineId).toMatch(/^[0-9a-f]{32}$/);
    machineIds.add(machineId);
    expect(await lab.exec(spec.sandboxId, "sh", "-c", "echo $COLOUR")).toBe(
      name === undefined ? "" : "green",
    );
    if (other) await expect(lab.exec(sandboxId, "true")).rejects.toThrow();
  }
  expect(machineIds.size).toBe(3);
});
