// The agents of this host's machines: calls of one, what it is told of its sandbox, and the keys that all verify tokens with.
import { createHash } from "node:crypto";
import type { Clock, KeySet, Log } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { AssignRequestJson } from "@cloche/protocol/guest";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";
import { AgentClient } from "./agent-client.ts";
import { VerificationKeys } from "./verification-keys.ts";

export interface AgentsParts {
  machines: Machines;
  poolDir: string;
  /** Name servers that sandboxes ask. */
  dnsServers: readonly string[];
  clock: Clock;
  log: Log;
  randomBytes: (length: number) => Uint8Array;
}

/** What of a sandbox its agent is told. */
type AssignedTo = Pick<MachineRecord, "id" | "name" | "env" | "blockDevice">;

/** Users' processes of one sandbox; the machine's own limit lies far above. */
export const MAX_PROCESSES = 4_096;

/** The gateway waits for the agents' answers to new keys before it goes on: no longer than this. */
const KEYS_PATIENCE_MS = 3_000;

export class Agents {
  readonly keys: VerificationKeys;
  readonly #parts: AgentsParts;

  constructor(parts: AgentsParts) {
    this.#parts = parts;
    this.keys = new VerificationKeys(parts.poolDir);
  }

  /** Calls wait until a machine that dozes is awake, and keep it so. */
  of(record: MachineRecord): AgentClient {
    return this.#knowing(record.controlSecret, record);
  }

  /** Calls neither wake a machine that dozes nor keep it awake. */
  ofDozing(record: MachineRecord): AgentClient {
    return new AgentClient(record, record.controlSecret, undefined, this.#parts.machines.cutOf(record.id));
  }

  #knowing(secret: string, record: MachineRecord): AgentClient {
    const { machines } = this.#parts;
    return new AgentClient(record, secret, () => machines.doze.hold(record.id), machines.cutOf(record.id));
  }

  /**
   * Tells a machine's agent who it is, and gives it a new control secret. Repeatable after a crash in its middle: the agent
   * then knows the old secret or the next one.
   */
  async assign(
    id: string,
    options: { renewIdentity: boolean; startServices: boolean },
  ): Promise<{ started: string[]; failed: string[] }> {
    const { machines } = this.#parts;
    const before = machines.get(id);
    const nextControlSecret = this.newControlSecret();
    const maybeKnown = [before.controlSecret, before.nextControlSecret].filter((one) => one !== undefined);
    const record = await machines.change(id, { nextControlSecret });
    const request = this.assignRequest(record, nextControlSecret, options);
    for (const [index, secret] of maybeKnown.entries()) {
      try {
        const answer = await this.#knowing(secret, record).assign(request);
        await machines.dropField(id, "nextControlSecret", { controlSecret: nextControlSecret });
        return { started: answer.startedServices, failed: answer.failedServices };
      } catch (error) {
        const refused = error instanceof ClocheError && error.code === "unauthenticated";
        if (!refused || index === maybeKnown.length - 1) throw error;
      }
    }
    throw new ClocheError("internal", "no control secret is known");
  }

  newControlSecret(): string {
    return Buffer.from(this.#parts.randomBytes(32)).toString("base64url");
  }

  assignRequest(
    to: AssignedTo,
    controlSecret: string,
    options: { renewIdentity: boolean; startServices: boolean },
  ): AssignRequestJson {
    const { clock, randomBytes } = this.#parts;
    return {
      ...this.#told(to),
      ...options,
      controlSecret,
      entropyBase64: Buffer.from(randomBytes(32)).toString("base64"),
      wallClockMs: clock.nowMs(),
    };
  }

  /** Stands for what an Assign tells of the sandbox itself: the same for two that tell the same. */
  assignmentOf(to: AssignedTo): string {
    return createHash("sha256")
      .update(JSON.stringify(this.#told(to)))
      .digest("hex");
  }

  #told(to: AssignedTo) {
    return {
      sandboxId: to.id,
      hostname: hostnameOf(to),
      keys: this.keys.forAgents,
      env: to.env,
      maxProcesses: MAX_PROCESSES,
      dnsServers: [...this.#parts.dnsServers],
      blockDevice: to.blockDevice ?? "",
    };
  }

  /**
   * Keeps the key set and pushes it to every agent. Those that are slow are not waited for: they have it a little later, or with
   * their next Assign.
   */
  async setKeys(keys: KeySet): Promise<void> {
    const { machines, clock } = this.#parts;
    await this.keys.set(keys);
    const pushes = machines
      .all()
      // Only these read keys: of the others the edge is told, which verifies for them.
      .filter(({ phase, channel }) => phase === "running" && channel === undefined)
      .map((record) => this.#pushKeys(record));
    const patience = new AbortController();
    const waited = clock.sleep(KEYS_PATIENCE_MS, patience.signal).catch(() => undefined);
    await Promise.race([Promise.all(pushes), waited]);
    patience.abort();
  }

  async #pushKeys(record: MachineRecord): Promise<void> {
    try {
      await this.of(record).setVerificationKeys(this.keys.forAgents);
    } catch (error) {
      this.#parts.log.warn({ err: error, sandbox_id: record.id }, "keys not pushed");
    }
  }
}

/** The display name as a host name; the sandbox's id where the name has nothing to offer. */
function hostnameOf(record: { id: string; name: string }): string {
  const text = record.name
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "")
    .slice(0, 63)
    .replace(/-+$/, "");
  return text || record.id;
}
