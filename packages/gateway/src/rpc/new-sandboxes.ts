/**
 * CreateSandbox and ForkSandbox: settles the fields of the new sandboxes (creation.ts), creates them
 * (lifecycle.create), and answers with their tokens. One loop tries again when others were faster:
 *
 *   KeyTaken             another call used the idempotency key: its sandboxes are the answer
 *   NoRoom               the chosen host is full: another host (placement.ts)
 *   IdTaken              ready machines are offered to all gateways: other ids
 *   the source changed   it is read again
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ClocheError } from "@cloche/protocol";
import type { CreateSandboxRequest, ForkSandboxRequest, SandboxSchema } from "@cloche/protocol/public";
import { NoRoom } from "../database/host-reservations.ts";
import { KeyTaken } from "../database/idempotency-keys.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { IdTaken } from "../database/sandboxes.ts";
import type { Choose, Placement } from "../hosts/placement.ts";
import type { AuditLog, Caller } from "../lifecycle/audit-log.ts";
import type { CallContext } from "../hosts/host-calls.ts";
import { type CallKey, type Lifecycle, type NewSandbox, tooBusy } from "../lifecycle/lifecycle.ts";
import type { ReadyMachines } from "../lifecycle/ready-machines.ts";
import type { Relocation } from "../lifecycle/relocation.ts";
import { gatewayLimits } from "../limits.ts";
import type { IssuedToken, TokenIssuer } from "../tokens/token-issuer.ts";
import type { Creation } from "./creation.ts";
import { type Idempotency, keyIsBusy } from "./idempotency.ts";

export interface NewSandboxesDependencies {
  lifecycle: Lifecycle;
  placement: Placement;
  relocation: Relocation;
  creation: Creation;
  ready: ReadyMachines;
  tokens: TokenIssuer;
  audit: AuditLog;
  idempotency: Idempotency;
  dataPlaneUrl: string;
  message: (record: SandboxRecord) => MessageInitShape<typeof SandboxSchema>;
  /** Resolves when the edges know every route of this gateway, or after a short time. */
  routesDelivered: () => Promise<void>;
}

interface Request {
  /** `fork`: live clones of the source, on its host. */
  kind: "create" | "fork";
  caller: Caller;
  key: CallKey | undefined;
  settle: (choose: Choose) => Promise<NewSandbox[]>;
}

export class NewSandboxes {
  readonly #needs: NewSandboxesDependencies;

  constructor(needs: NewSandboxesDependencies) {
    this.#needs = needs;
  }

  async create(caller: Caller, request: CreateSandboxRequest, call: CallContext, key: CallKey | undefined) {
    const settle = async (choose: Choose) => [
      await this.#needs.creation.forCreate(caller, request, call, choose),
    ];
    return await this.#make({ kind: "create", caller, key, settle });
  }

  async fork(caller: Caller, request: ForkSandboxRequest, call: CallContext, key: CallKey | undefined) {
    const { audit, creation, lifecycle, relocation } = this.#needs;
    const kind = request.checkpointId === "" ? "fork" : "create";
    let source: SandboxRecord | undefined;
    const settle = async (choose: Choose) => {
      source = await lifecycle.find(caller, request.sourceSandboxId, "source_sandbox_id");
      lifecycle.check(source, "fork");
      if (kind === "create") return await creation.forForks(caller, request, source, call, choose);
      const placed = await relocation.sourceOfFork(source, call);
      if (placed === undefined) throw new SourceChanged(source.id);
      return await creation.forForks(caller, request, source, call, () => placed.hostId);
    };
    try {
      return await this.#make({ kind, caller, key, settle });
    } catch (error) {
      if (source !== undefined) await audit.denied(caller, "sandbox.fork", source.id, error);
      throw error;
    }
  }

  async #make({ kind, caller, key, settle }: Request) {
    const { idempotency, placement } = this.#needs;
    const hosts = placement.hosts();
    let failure: unknown;
    for (let attempt = 0; attempt < gatewayLimits.changeAttempts; attempt += 1) {
      const before = key && (await idempotency.find(caller.teamId, key));
      if (key !== undefined && before !== undefined) {
        const answer = await this.#madeBefore(caller, before);
        if (answer !== undefined) return answer;
        await idempotency.requireFreed(caller.teamId, key, before);
      }
      try {
        return await this.#insert(caller, kind, await settle(hosts.choose), key);
      } catch (error) {
        if (error instanceof NoRoom && kind === "fork") throw noRoomForForks(placement.refused(error));
        if (error instanceof NoRoom) hosts.refused(error);
        else if (!wasFaster.some((one) => error instanceof one)) throw error;
        failure = error;
      }
    }
    throw failure instanceof KeyTaken && key !== undefined ? keyIsBusy(key) : failure;
  }

  /** The tokens are signed while the machines start. */
  async #insert(caller: Caller, kind: Request["kind"], wanted: readonly NewSandbox[], key?: CallKey) {
    const { lifecycle, ready } = this.#needs;
    const ids = wanted.map(({ id }) => id);
    const release = (): void => ids.forEach((id) => ready.release(id));
    const [records, issued] = await Promise.all([
      lifecycle.create(caller, wanted, kind, key).finally(release),
      this.#tokensOf(caller, ids),
    ]);
    return await this.#answerOf(records, issued);
  }

  /** The sandboxes in their present states, with fresh tokens; undefined: one of them is gone. */
  async #madeBefore(caller: Caller, ids: readonly string[]) {
    const records = await Promise.all(ids.map((id) => this.#needs.lifecycle.made(id)));
    const there = records.filter((one) => one !== undefined);
    if (there.length < ids.length) return undefined;
    return await this.#answerOf(there, await this.#tokensOf(caller, ids));
  }

  #tokensOf({ teamId }: Caller, ids: readonly string[]): Promise<IssuedToken[]> {
    return Promise.all(ids.map((id) => this.#needs.tokens.issue(teamId, id)));
  }

  async #answerOf(records: readonly SandboxRecord[], issued: readonly IssuedToken[]) {
    const { dataPlaneUrl, message, routesDelivered } = this.#needs;
    await routesDelivered();
    const jwts = records.map((record, index) => (hasTokens(record) ? (issued[index]?.jwt ?? "") : ""));
    const [sandbox] = records;
    const hasToken = jwts.some((jwt) => jwt !== "");
    return {
      sandbox: sandbox && message(sandbox),
      dataPlaneToken: jwts[0] ?? "",
      // The earliest expiry, so that it holds for all tokens.
      dataPlaneTokenExpiresAtUnix: hasToken ? Math.min(...issued.map((one) => one.expiresAtUnix)) : 0,
      dataPlaneUrl: hasToken ? dataPlaneUrl : "",
      sandboxes: records.map(message),
      dataPlaneTokens: jwts,
    };
  }
}

/** The source of a fork has another state or host than when it was read. */
class SourceChanged extends ClocheError {
  constructor(id: string) {
    super("aborted", tooBusy(id).message);
  }
}

const wasFaster = [IdTaken, KeyTaken, SourceChanged];

const hasTokens = ({ state }: SandboxRecord): boolean =>
  state !== "SANDBOX_STATE_ERROR" && state !== "SANDBOX_STATE_DELETING";

/** Live forks share memory and disk with their source, so they must begin on its host. */
const noRoomForForks = ({ retryAfterSeconds }: NoRoom): ClocheError =>
  new ClocheError(
    "unavailable",
    "source_sandbox_id: its host has no room for a fork now; try again later, or save a checkpoint and fork that",
    retryAfterSeconds === undefined ? {} : { retryAfterSeconds },
  );
