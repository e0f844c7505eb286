/** A Cloche sandbox as the sandbox of a Mastra workspace: `new Workspace({ sandbox: new ClocheSandbox() })`. */
import {
  MastraSandbox,
  type MastraSandboxOptions,
  type ProviderStatus,
  type SandboxCloneOptions,
  type SandboxFileInput,
  type SandboxInfo,
  type SandboxNetworking,
  validateSandboxFileMode,
  type WriteFilesOptions,
} from "@mastra/core/workspace";
import { Cloche, ClocheApiError, type CreateSandboxRequest, type Sandbox } from "@cloche/sdk";
import { ClocheProcesses } from "./processes.ts";

export interface ClocheSandboxOptions extends Omit<MastraSandboxOptions, "processes"> {
  /** Mastra's id of it. `start` resumes the machine that was made with it, where there is one. Default: a random one. */
  id?: string;
  /** Default: CLOCHE_URL and CLOCHE_API_KEY, in Node else the service of this machine. */
  cloche?: Cloche;
  /** `memory_mb`, `cpus`, `egress`, `public_ports`, …. */
  request?: CreateSandboxRequest;
  /** The Unix user of commands and files. Default root. */
  user?: string;
  /** Cloche's id of a machine that is there, for `start` to take instead of making one. */
  sandboxId?: string;
}

/** Which metadata of a machine has Mastra's id. */
const idKey = "mastra_id";
const running = "SANDBOX_STATE_RUNNING";
const suspended = "SANDBOX_STATE_SUSPENDED";
const gone = new Set(["SANDBOX_STATE_DELETING", "SANDBOX_STATE_ERROR"]);

/** `start` makes or resumes a machine, `stop` suspends it with its memory, `destroy` deletes it. */
export class ClocheSandbox extends MastraSandbox<Sandbox> {
  readonly id: string;
  readonly name = "ClocheSandbox";
  readonly provider = "cloche";
  override readonly networking: SandboxNetworking = { getPortUrl: (port) => this.#portUrl(port) };
  status: ProviderStatus = "pending";
  readonly #options: ClocheSandboxOptions;
  readonly #cloche: Cloche;
  #sandbox: Sandbox | undefined;

  constructor(options: ClocheSandboxOptions = {}) {
    super({ ...options, name: "ClocheSandbox", processes: new ClocheProcesses(options.user) });
    this.id = options.id ?? crypto.randomUUID();
    this.#options = options;
    this.#cloche = options.cloche ?? new Cloche();
  }

  /** The machine itself, for forks, checkpoints and what else Mastra does not know. */
  get sandbox(): Sandbox {
    if (this.#sandbox === undefined) throw new Error(`the sandbox ${this.id} is not started`);
    return this.#sandbox;
  }

  protected override async find(): Promise<Sandbox | undefined> {
    const { sandboxId } = this.#options;
    if (sandboxId !== undefined) return this.#cloche.get(sandboxId);
    for await (const found of this.#cloche.list({ metadata: { [idKey]: this.id } }))
      if (!gone.has(found.info.state)) return found;
    return undefined;
  }

  protected override async connect(found: Sandbox): Promise<void> {
    const { state } = found.info;
    if (state === "SANDBOX_STATE_SUSPENDING") await found.waitFor(suspended);
    if (found.info.state === suspended) await found.resume();
    await found.waitFor(running);
    this.#sandbox = found;
  }

  protected override async create(): Promise<void> {
    const { request = {} } = this.#options;
    const metadata = { ...request.metadata, [idKey]: this.id };
    this.#sandbox = await this.#cloche.create({ ...request, metadata });
    await this.#sandbox.waitFor(running);
  }

  override async stop(): Promise<void> {
    const sandbox = this.#sandbox;
    if (sandbox === undefined) return;
    await sandbox.suspend();
    await sandbox.waitFor(suspended);
  }

  override async destroy(): Promise<void> {
    const sandbox = this.#sandbox ?? (await this.find().catch(unlessMissing));
    this.#sandbox = undefined;
    await sandbox?.delete().catch(unlessMissing);
  }

  /** Calls the machine; where it was suspended or deleted by others, it is resumed or made anew, and called again. */
  async alive<T>(call: (sandbox: Sandbox) => Promise<T>): Promise<T> {
    try {
      return await call(this.sandbox);
    } catch (error) {
      const isGone = error instanceof ClocheApiError && error.code === "not_found";
      const isDown = error instanceof ClocheApiError && error.reason === "not_running";
      if (!isDown && !(isGone && (await this.#isDeleted()))) throw error;
      this.status = "stopped";
      await this._start();
      return call(this.sandbox);
    }
  }

  async #isDeleted(): Promise<boolean> {
    try {
      return gone.has((await this.sandbox.refresh()).state);
    } catch (error) {
      unlessMissing(error);
      return true;
    }
  }

  override async writeFiles(files: SandboxFileInput[], options: WriteFilesOptions = {}): Promise<void> {
    for (const { mode } of files) if (mode !== undefined) validateSandboxFileMode(mode);
    await this.ensureRunning();
    const { user } = this.#options;
    for (const { path, content, mode } of files) {
      const bytes = typeof content === "string" ? content : new Uint8Array(content);
      const how = {
        ...(mode !== undefined && { mode: mode.toString(8) }),
        ...(user !== undefined && { asUser: user }),
        ...(options.abortSignal !== undefined && { signal: options.abortSignal }),
      };
      await this.alive((sandbox) => sandbox.files.upload(path, bytes, how));
    }
  }

  override getInstructions(): string {
    const { user = "root" } = this.#options;
    const where = this.workingDirectory ?? (user === "root" ? "/root" : `/home/${user}`);
    return `An isolated Linux machine (Debian) with bash, Python, Node and git. Commands start in ${where}, as ${user}.`;
  }

  override getInfo(): SandboxInfo {
    const { id, name, provider, status } = this;
    const info = this.#sandbox?.info;
    return {
      id,
      name,
      provider,
      status,
      createdAt: info === undefined ? new Date() : new Date(info.created_at),
      ...(info !== undefined && {
        resources: { memoryMB: info.memory_mb, cpuCores: info.cpus, diskMB: info.disk_mb },
        metadata: { sandboxId: info.id, ...info.metadata },
      }),
    };
  }

  /** A machine of its own with the same settings; see Mastra's `WorkspaceSandbox.clone`. */
  clone(options: SandboxCloneOptions = {}): ClocheSandbox {
    const { id, sandboxId, env, workingDirectory, idleTimeoutMinutes } = options;
    const { id: _, sandboxId: __, ...same } = this.#options;
    const idle = idleTimeoutMinutes && { idle_suspend_seconds: idleTimeoutMinutes * 60 };
    return new ClocheSandbox({
      ...same,
      request: { ...same.request, ...idle },
      env: { ...this.getEnv(), ...env },
      ...(id !== undefined && { id }),
      ...(sandboxId !== undefined && { sandboxId }),
      ...(workingDirectory !== undefined && { workingDirectory }),
    });
  }

  /** Who opens it needs the machine's token, unless the port is one of the request's `public_ports`. */
  async #portUrl(port: number): Promise<string | null> {
    return this.status === "running" ? this.sandbox.portUrl(port) : null;
  }
}

function unlessMissing(error: unknown): undefined {
  if (!(error instanceof ClocheApiError && error.code === "not_found")) throw error;
}
