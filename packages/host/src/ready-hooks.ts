/**
 * The host service's part in keeping machines ready: it makes fresh disks, prepares agents, assigns each to a new sandbox id
 * that a create may use later, and tells the gateway these ids.
 */
import { create } from "@bufbuild/protobuf";
import { defaults, generateName, newSandboxId } from "@cloche/protocol";
import { ReadyMachineSchema } from "@cloche/protocol/host";
import { cloneDisk } from "./disk/disk.ts";
import type { ReadyHooks, Runtime } from "./drivers/driver.ts";
import { type Agents, processesMax } from "./agent-calls/agents.ts";
import { AgentClient } from "./agent-calls/agent-client.ts";
import type { HostParts } from "./host-parts.ts";
import type { Machines } from "./machines/machines.ts";

const entropyBytes = 32;

export interface ReadyHooksParts extends Pick<HostParts, "native" | "templates" | "randomBytes"> {
  machines: Machines;
  agents: Agents;
}

export function readyHooks(parts: ReadyHooksParts, runtime: Runtime): ReadyHooks {
  const { machines, agents, native, templates, randomBytes } = parts;
  return {
    key: JSON.stringify([templates.key, defaults.diskMb, processesMax]),
    async disk(image) {
      await cloneDisk(native, await templates.ofSize(defaults.diskMb), image);
    },
    async prepare(agent, secret) {
      await new AgentClient(agent, secret).prepare({
        entropyBase64: Buffer.from(randomBytes(entropyBytes)).toString("base64"),
        maxProcesses: processesMax,
      });
    },
    async assign(agent, secret) {
      const [sandboxId, name] = [newSandboxId(randomBytes), generateName(randomBytes)];
      const to = { id: sandboxId, name, env: {} };
      const controlSecret = agents.newControlSecret();
      const request = agents.assignRequest(to, controlSecret, {
        renewIdentity: true,
        startServices: false,
      });
      await new AgentClient(agent, secret).assign(request);
      return { sandboxId, name, secret: controlSecret, assignment: agents.assignmentOf(to) };
    },
    offer(identities) {
      const { template, cpus, memoryMb, diskMb } = defaults;
      const shape = { runtime, template, cpus, memoryMb, diskMb };
      machines.events.offer(
        identities.map(({ sandboxId, name }) => create(ReadyMachineSchema, { sandboxId, name, ...shape })),
      );
    },
    async flush(agent, secret) {
      await new AgentClient(agent, secret).prepareSnapshot();
    },
    async detachDisk(agent, secret) {
      await new AgentClient(agent, secret).detachDisk();
    },
  };
}
