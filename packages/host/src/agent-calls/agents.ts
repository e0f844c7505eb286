/**
 * The agents of this host's machines: clients for calls, the content of Assign, and the keys that verify tokens.
 */
import { createHash } from "node:crypto";
import type { Clock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { AssignRequestJson } from "@cloche/protocol/guest";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";
import { AgentClient } from "./agent-client.ts";
import { AgentConnections } from "./agent-connections.ts";
import { VerificationKeys } from "./verification-keys.ts";

export interface AgentsParts {
  machines: Machines;
  poolDir: string;
  /** Name servers that sandboxes ask. */
  dnsServers: readonly string[];
  clock: Clock;
  randomBytes: (length: number) => Uint8Array;
}

/** The fields of a sandbox that its agent is told. */
type AssignedTo = Pick<MachineRecord, "id" | "name" | "env" | "blockDevice">;

/**
 * Most users' processes of one sandbox, in both runtimes. By memory fewer: native/guest/guest.c, which gVisor's unit-limits.ts repeats. The
 * machine's own limit is far above.
 */
export const processesMax = 4_096;

export class Agents {
  readonly keys: VerificationKeys;
  readonly connections = new AgentConnections();
  readonly #parts: AgentsParts;

  constructor(parts: AgentsParts) {
    this.#parts = parts;
    this.keys = new VerificationKeys(parts.poolDir);
    parts.machines.onAgentGone = ({ agentHost: host, agentPort: port }) =>
      this.connections.close({ host, port });
  }

  /** A client whose calls wake a dozing machine and keep it awake. */
  of(record: MachineRecord): AgentClient {
    return this.#knowing(record.controlSecret, record);
  }

  /** A client whose calls neither wake a dozing machine nor keep it awake. */
  ofDozing(record: MachineRecord): AgentClient {
    return this.#client(record.controlSecret, record);
  }

  #knowing(secret: string, record: MachineRecord): AgentClient {
    return this.#client(secret, record, () => this.#parts.machines.doze.hold(record.id));
  }

  #client(secret: string, record: MachineRecord, keepAwake?: () => Promise<() => void>): AgentClient {
    const cut = this.#parts.machines.cutOf(record.id);
    return new AgentClient(record, secret, {
      ...(keepAwake && { keepAwake }),
      cut,
      connections: this.connections,
    });
  }

  /**
   * Tells a machine's agent its identity and gives it a new control secret. Repeatable after a crash in the middle: the agent
   * then accepts the old secret or the next one.
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
      ...this.#assignment(to),
      ...options,
      controlSecret,
      entropyBase64: Buffer.from(randomBytes(32)).toString("base64"),
      wallClockMs: clock.nowMs(),
    };
  }

  /** Digest of the sandbox's fields in an Assign. */
  assignmentOf(to: AssignedTo): string {
    return createHash("sha256")
      .update(JSON.stringify(this.#assignment(to)))
      .digest("hex");
  }

  #assignment(to: AssignedTo) {
    return {
      sandboxId: to.id,
      hostname: hostnameOf(to),
      issuer: this.keys.current.issuer,
      env: to.env,
      maxProcesses: processesMax,
      dnsServers: [...this.#parts.dnsServers],
      blockDevice: to.blockDevice ?? "",
    };
  }
}

/** The display name as a host name; the sandbox's id if nothing of the name can be used. */
function hostnameOf(record: { id: string; name: string }): string {
  const text = record.name
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "")
    .slice(0, 63)
    .replace(/-+$/, "");
  return text || record.id;
}
