/** Cloche sandboxes as a backend of LangChain's Deep Agents: commands and files; the rest is derived from them upstream. */
import { Cloche, ClocheApiError, type CreateSandboxRequest, type Sandbox } from "@cloche/sdk";
import {
  BaseSandbox,
  type ExecuteResponse,
  type FileDownloadResponse,
  type FileOperationError,
  type FileUploadResponse,
} from "deepagents";

export interface ClocheSandboxOptions {
  /** Of one command, in milliseconds; 0: none. Default 1,800,000. */
  timeoutMs?: number;
  /** The Unix user of commands and files. Default root. */
  user?: string;
  /** Where commands run. Default: the user's home. */
  directory?: string;
}

export interface ClocheSandboxCreateOptions extends ClocheSandboxOptions {
  /** Default: CLOCHE_URL and CLOCHE_API_KEY, in Node else the service of this machine. */
  cloche?: Cloche;
  /** `memory_mb`, `cpus`, `egress`, …. */
  request?: CreateSandboxRequest;
  /** Absolute paths and their content. */
  initialFiles?: Record<string, string>;
}

const timedOutCode = 124;
const defaultTimeoutMs = 1_800_000;

export class ClocheSandbox extends BaseSandbox {
  readonly #options: ClocheSandboxOptions & ClocheSandboxCreateOptions;
  #sandbox: Sandbox | undefined;

  /** Wraps a sandbox that is there; without one, `initialize` makes it. */
  constructor(sandbox?: Sandbox, options: ClocheSandboxCreateOptions = {}) {
    super();
    this.#sandbox = sandbox;
    this.#options = options;
  }

  /** A new machine; `close` deletes it. */
  static async create(options: ClocheSandboxCreateOptions = {}): Promise<ClocheSandbox> {
    const made = new ClocheSandbox(undefined, options);
    await made.initialize();
    return made;
  }

  async initialize(): Promise<void> {
    if (this.#sandbox !== undefined) throw new Error(`the sandbox ${this.id} is initialized already`);
    const { cloche = new Cloche(), request, initialFiles = {} } = this.#options;
    this.#sandbox = await cloche.create(request);
    await this.#sandbox.waitFor("SANDBOX_STATE_RUNNING");
    const encoder = new TextEncoder();
    await this.uploadFiles(Object.entries(initialFiles).map(([path, text]) => [path, encoder.encode(text)]));
  }

  /** The machine itself, for forks, checkpoints and what else Deep Agents do not know. */
  get sandbox(): Sandbox {
    if (this.#sandbox === undefined)
      throw new Error("the sandbox is not initialized; call initialize() first");
    return this.#sandbox;
  }

  get id(): string {
    return this.sandbox.id;
  }

  get isRunning(): boolean {
    return this.#sandbox !== undefined;
  }

  /** Deletes the machine. */
  async close(): Promise<void> {
    const sandbox = this.#sandbox;
    this.#sandbox = undefined;
    await sandbox?.delete().catch((error: unknown) => {
      if (!(error instanceof ClocheApiError && error.code === "not_found")) throw error;
    });
  }

  /** Standard output and error as one text, in the order they were written. */
  async execute(command: string): Promise<ExecuteResponse> {
    const { timeoutMs = defaultTimeoutMs, user, directory } = this.#options;
    const { stdout, exit_code, timed_out, stdout_truncated } = await this.sandbox.exec(
      ["bash", "-c", `exec 2>&1\n${command}`],
      {
        ...(timeoutMs > 0 && { timeout_ms: timeoutMs }),
        ...(user !== undefined && { user }),
        ...(directory !== undefined && { dir: directory }),
      },
    );
    const truncated = stdout_truncated === true;
    if (!timed_out) return { output: stdout, exitCode: exit_code, truncated };
    const output = `${stdout}\nCommand timed out after ${timeoutMs} ms`.trimStart();
    return { output, exitCode: timedOutCode, truncated };
  }

  async uploadFiles(files: [string, Uint8Array][]): Promise<FileUploadResponse[]> {
    return await Promise.all(
      files.map(async ([path, content]) => {
        const upload = () => this.sandbox.files.upload(path, new Uint8Array(content), this.#how());
        return { path, error: await errorOf(path, upload) };
      }),
    );
  }

  async downloadFiles(paths: string[]): Promise<FileDownloadResponse[]> {
    return await Promise.all(
      paths.map(async (path) => {
        let content: Uint8Array | null = null;
        const error = await errorOf(path, async () => {
          content = await this.sandbox.files.read(path, this.#how());
        });
        return { path, content, error };
      }),
    );
  }

  #how(): { asUser?: string } {
    const { user } = this.#options;
    return user === undefined ? {} : { asUser: user };
  }
}

const byReason: Record<string, FileOperationError> = {
  is_directory: "is_directory",
  not_directory: "invalid_path",
};

/** In the words of Deep Agents; what they have none for is thrown. */
async function errorOf(path: string, call: () => Promise<unknown>): Promise<FileOperationError | null> {
  if (!path.startsWith("/")) return "invalid_path";
  try {
    await call();
    return null;
  } catch (error) {
    if (!(error instanceof ClocheApiError)) throw error;
    if (error.code === "not_found") return "file_not_found";
    if (error.code === "permission_denied") return "permission_denied";
    const told = byReason[error.reason ?? ""];
    if (told === undefined) throw error;
    return told;
  }
}
