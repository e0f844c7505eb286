/**
 * GuestService (spec/proto/cloche/guest/v1/guest.proto): the host's calls to the agent, as Connect unary JSON. Calls that change
 * something run one at a time, in the order of their arrival. auth/authorize.ts has authorised the caller.
 */
import { ClocheError } from "@cloche/protocol";
import type {
  ActivityResponseJson,
  AssignRequestJson,
  AssignResponseJson,
  AttachDiskResponseJson,
  DetachDiskResponseJson,
  GuestEmptyJson,
  PrepareCheckpointResponseJson,
  PrepareSnapshotResponseJson,
} from "@cloche/protocol/guest";
import { controlPrefix } from "../auth/authorize.ts";
import type { ControlSecret } from "../auth/control-secret.ts";
import { TokenVerifier } from "../auth/token-verifier.ts";
import type { ChannelKeys } from "../auth/channel-keys.ts";
import {
  type JsonObject,
  optionalBoolean,
  optionalInteger,
  optionalEnvironment,
  optionalString,
  optionalStrings,
} from "../http/fields.ts";
import type { Exchange } from "../http/exchange.ts";
import type { Route } from "../http/router.ts";
import type { Log } from "../log.ts";
import type { ProcessTable } from "../processes/index.ts";
import type { Randomness } from "../snapshot/randomness.ts";
import type { Spawner } from "../spawner/index.ts";
import { type Activity, descendants } from "./activity.ts";
import { setClock } from "./block-device.ts";
import { deletedButOpen } from "../snapshot/deleted-files.ts";
import type { DiskServices, SandboxDisk } from "./disk.ts";
import { checkHostname, type Identity, writeIdentity } from "./identity.ts";
import { dropGarbage, rehearse, rehearseAgain } from "../snapshot/rehearsal.ts";

export interface GuestServiceParts {
  identity: Identity;
  control: ControlSecret;
  channelKeys: ChannelKeys;
  disk: SandboxDisk;
  diskPath: string;
  services: DiskServices;
  spawner: Spawner;
  activity: Activity;
  randomness: Randomness;
  log: Log;
  /** The native program. */
  guestProgram: string;
  runningExecs(): number;
  processes: ProcessTable;
}

/** The clock is set if it differs by more than this. */
const clockToleranceMs = 50;

/** Longer than a checkpoint takes after PrepareCheckpoint: a machine that starts a process is slow to pause. */
const nextGuestAfterMs = 150;

export const agentVersion = "0.1.0";

export function guestServiceRoutes(parts: GuestServiceParts): Route[] {
  const service = new GuestService(parts);
  let last: Promise<unknown> = Promise.resolve();
  const inTurn = <Answer>(call: () => Promise<Answer>): Promise<Answer> => {
    const turn = last.then(call, call);
    const settled = turn.catch(() => undefined);
    last = settled.then(() => parts.identity.beingWritten);
    return turn;
  };
  const method = (name: string, call: (body: JsonObject, exchange: Exchange) => unknown): Route => ({
    method: "POST",
    path: `${controlPrefix}${name}`,
    handle: async (exchange) => call(await exchange.readJson(), exchange),
  });
  return [
    method("Prepare", (body) => inTurn(() => service.prepare(body))),
    method("Assign", (body, { request }) => inTurn(() => service.assign(body, request.socket))),
    method("GetActivity", () => service.getActivity()),
    method("PrepareCheckpoint", (body) => inTurn(() => service.prepareCheckpoint(body))),
    method("PrepareSnapshot", () => inTurn(() => service.prepareSnapshot())),
    method("DetachDisk", () => inTurn(() => service.detachDisk())),
    method("AttachDisk", (body) => inTurn(() => service.attachDisk(body))),
    method("Shutdown", () => inTurn(() => service.shutdown())),
  ];
}

class GuestService {
  readonly #parts: GuestServiceParts;
  /** The present guest may come from a template, so that other machines have the same guest. */
  #shared = false;

  constructor(parts: GuestServiceParts) {
    this.#parts = parts;
  }

  /** Prepares for Assign; may be repeated. */
  async prepare(body: JsonObject): Promise<GuestEmptyJson> {
    const { identity, channelKeys, disk, spawner, randomness } = this.#parts;
    if (identity.sandboxId !== "") {
      throw new ClocheError("failed_precondition", "the agent is a sandbox's already");
    }
    const entropy = Buffer.from(optionalString(body, "entropyBase64") ?? "", "base64");
    if (entropy.length > 0) randomness.mix(entropy);
    disk.maxProcesses = optionalInteger(body, "maxProcesses", 0, 1_000_000) || undefined;
    const rehearsed = this.#shared;
    await this.#renewGuest();
    await disk.attach("");
    if (rehearsed) await rehearseAgain(spawner.guest, channelKeys);
    else await rehearse(spawner.guest, channelKeys);
    return {};
  }

  async assign(body: JsonObject, connection: unknown): Promise<AssignResponseJson> {
    const { identity, control, channelKeys, disk, processes, services, spawner, randomness, log } =
      this.#parts;
    const request = readAssign(body);
    const verifier = new TokenVerifier(request.sandboxId, request.issuer, channelKeys);
    if (request.entropy.length > 0) randomness.mix(request.entropy);
    if (request.blockDevice !== "") await this.#setClock(request.wallClockMs); // gVisor's clock is the host's
    disk.maxProcesses = request.maxProcesses;
    await this.#renewGuest();
    await disk.attach(request.blockDevice);
    processes.diskAttached();
    const { sandboxId: id, env, dnsServers, hostname, renewIdentity: renew } = request;
    // gVisor makes one with the renewed procfs of a template's guest. Forks, and all VMs of a template, have the same.
    const isFork = renew && identity.sandboxId !== "";
    const isOfTemplate = request.blockDevice !== "" && identity.sandboxId === "";
    const bootId = isFork || isOfTemplate ? uuidOf(machineId(randomness)) : identity.bootId;
    // Unchanged fields are not written again.
    const files = {
      hostname: renew || hostname !== identity.hostname ? hostname : "",
      dnsServers: dnsServers.join() === identity.dnsServers.join() ? [] : dnsServers,
      machineId: renew ? machineId(randomness) : undefined,
      bootId: bootId === identity.bootId ? undefined : bootId,
    };
    // The answer does not wait for the files; data plane requests and the next call of the host do.
    identity.writing(writeIdentity(spawner.guest, files, log), () =>
      log.warn("the identity's files are not written yet; the wait for them has ended"),
    );
    identity.become({ id, verifier, env, dnsServers, hostname, bootId });
    const wanted = request.startServices ? services.wanted() : [];
    if (wanted.length > 0) await identity.beingWritten;
    const { started, failed } = await services.startAll(wanted);
    // Last, so that a failed call can be repeated with the same secret.
    control.replace(request.controlSecret);
    channelKeys.replace(request.controlSecret, connection);
    processes.connectionsLost();
    log.info("assigned", { sandbox_id: request.sandboxId, started, failed });
    return { agentVersion, startedServices: started, failedServices: failed };
  }

  getActivity(): ActivityResponseJson {
    const { activity, runningExecs, services } = this.#parts;
    return {
      lastActivityUnixMs: activity.lastActivityMs,
      runningExecs: runningExecs(),
      openRequests: activity.openRequests,
      ...descendants(),
      activeServices: services.active().length,
    };
  }

  async prepareCheckpoint(body: JsonObject): Promise<PrepareCheckpointResponseJson> {
    const { disk, services, spawner } = this.#parts;
    disk.require();
    await disk.flush();
    // Node stands still for 10 to 20 ms while it starts the next guest's process, so it does this after the answer: before a restore
    // while the host makes the next disk, else when the checkpoint is taken, because a restore may follow.
    if (optionalBoolean(body, "swapAhead") === true) setImmediate(() => spawner.expectAttach());
    else setTimeout(() => spawner.expectAttach(), nextGuestAfterMs).unref();
    return { runningServices: services.running() };
  }

  async prepareSnapshot(): Promise<PrepareSnapshotResponseJson> {
    const { disk, diskPath, identity, processes } = this.#parts;
    if (identity.sandboxId !== "") processes.snapshotAhead();
    if (disk.attached) await disk.flush();
    if (identity.sandboxId === "") {
      dropGarbage();
      this.#shared = true;
    }
    const { blockingPaths, bytes, paths } = deletedButOpen(diskPath);
    return { blockingPaths, deletedBytes: bytes, deletedPaths: paths, flushed: true };
  }

  async detachDisk(): Promise<DetachDiskResponseJson> {
    const { disk, identity, processes, spawner } = this.#parts;
    if (disk.attached && identity.sandboxId !== "") await processes.endAll("restore");
    await processes.releaseDisk();
    const runningServices = await disk.detach();
    // A template is saved with its guest. A sandbox's next guest is started after the answer, while the host swaps the disk.
    if (identity.sandboxId !== "") setImmediate(() => spawner.expectAttach());
    else {
      spawner.expectAttach();
      dropGarbage();
    }
    return { runningServices };
  }

  async attachDisk(body: JsonObject): Promise<AttachDiskResponseJson> {
    const { disk, identity, log, processes, services, spawner } = this.#parts;
    const names = optionalStrings(body, "startServices") ?? [];
    if (disk.attached) throw new ClocheError("failed_precondition", "a disk is attached; detach it first");
    await disk.attach(optionalString(body, "blockDevice") ?? "");
    processes.diskAttached();
    // A new guest on a disk that may have another sandbox's host name. The machine-id on the disk stays.
    const { hostname, dnsServers, bootId } = identity;
    const files = { hostname, dnsServers, machineId: undefined, bootId };
    identity.writing(writeIdentity(spawner.guest, files, log), () =>
      log.warn("the identity's files are not written yet; the wait for them has ended"),
    );
    if (names.length > 0) await identity.beingWritten;
    const { started, failed } = await services.startAll(names);
    return { startedServices: started, failedServices: failed };
  }

  async shutdown(): Promise<GuestEmptyJson> {
    const { disk, processes, services } = this.#parts;
    await processes.releaseDisk();
    if (disk.attached) {
      await services.shutDown();
      await disk.flush();
    }
    await disk.detach();
    return {};
  }

  async #renewGuest(): Promise<void> {
    const { disk, spawner } = this.#parts;
    if (this.#shared && disk.attached) await spawner.guest.renew();
    this.#shared = false;
  }

  async #setClock(wallClockMs: number): Promise<void> {
    const { guestProgram, log } = this.#parts;
    if (wallClockMs === 0 || Math.abs(wallClockMs - Date.now()) < clockToleranceMs) return;
    const monotonicMs = Number(process.hrtime.bigint()) / 1e6;
    await setClock(guestProgram, wallClockMs, monotonicMs).catch((error: unknown) =>
      log.warn("the clock was not set", { error }),
    );
  }
}

const uuidOf = (bytes: Buffer): string =>
  bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");

/** A random (version 4) machine-id. */
function machineId(randomness: Randomness): Buffer {
  const bytes = randomness.bytes(16);
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  return bytes;
}

interface Assignment {
  sandboxId: string;
  controlSecret: string;
  hostname: string;
  issuer: string;
  env: Record<string, string>;
  entropy: Buffer;
  wallClockMs: number;
  renewIdentity: boolean;
  startServices: boolean;
  dnsServers: string[];
  blockDevice: string;
  maxProcesses: number | undefined;
}

/** proto3 JSON leaves out fields with their zero value. */
function readAssign(body: JsonObject): Assignment {
  const request = body as AssignRequestJson & JsonObject;
  const sandboxId = optionalString(request, "sandboxId") ?? "";
  if (sandboxId === "") throw new ClocheError("invalid_argument", "sandboxId is required");
  const controlSecret = optionalString(request, "controlSecret") ?? "";
  if (controlSecret === "") throw new ClocheError("invalid_argument", "controlSecret is required");
  const wallClockMs = request.wallClockMs ?? 0;
  return {
    sandboxId,
    controlSecret,
    hostname: checkHostname(optionalString(request, "hostname") ?? ""),
    issuer: optionalString(request, "issuer") ?? "",
    env: optionalEnvironment(request, "env") ?? {},
    entropy: Buffer.from(optionalString(request, "entropyBase64") ?? "", "base64"),
    wallClockMs: typeof wallClockMs === "number" && Number.isFinite(wallClockMs) ? wallClockMs : 0,
    renewIdentity: optionalBoolean(request, "renewIdentity") ?? false,
    startServices: optionalBoolean(request, "startServices") ?? false,
    dnsServers: (optionalStrings(request, "dnsServers") ?? []).filter((server) =>
      /^[0-9a-f.:]+$/i.test(server),
    ),
    blockDevice: optionalString(request, "blockDevice") ?? "",
    maxProcesses: optionalInteger(request, "maxProcesses", 0, 1_000_000) || undefined,
  };
}
