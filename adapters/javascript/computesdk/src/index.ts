/** Cloche sandboxes as a provider of ComputeSDK: `cloche({})` reads CLOCHE_URL and CLOCHE_API_KEY, in Node else this machine's service. */
import { Cloche, ClocheApiError, type Sandbox } from "@cloche/sdk";
import { type CommandResult, defineProvider, type RunCommandOptions } from "@computesdk/provider";

export interface ClocheConfig {
  /** Default CLOCHE_URL. */
  gatewayUrl?: string;
  /** Default CLOCHE_API_KEY. */
  apiKey?: string;
  /** How long a sandbox lives, in milliseconds; 0: until it is destroyed. Default 300,000. */
  timeout?: number;
  /** The Unix user of commands and files. Default root. */
  user?: string;
}

const lifetimeMs = 300_000;
/** Of a command that outran its timeout, as coreutils' own `timeout` says it. */
const timedOutCode = 124;

const clientOf = ({ gatewayUrl, apiKey }: ClocheConfig): Cloche =>
  new Cloche({ ...(gatewayUrl && { gatewayUrl }), ...(apiKey && { apiKey }) });

/** Of sandboxes whose configuration names one: their calls are told of nothing but the sandbox. */
const users = new WeakMap<Sandbox, string>();
const userOf = (sandbox: Sandbox): { asUser?: string } => {
  const asUser = users.get(sandbox);
  return asUser === undefined ? {} : { asUser };
};

function handed(sandbox: Sandbox, { user }: ClocheConfig): { sandbox: Sandbox; sandboxId: string } {
  if (user !== undefined) users.set(sandbox, user);
  return { sandbox, sandboxId: sandbox.id };
}

async function run(
  sandbox: Sandbox,
  command: string,
  options: RunCommandOptions = {},
): Promise<CommandResult> {
  const user = users.get(sandbox);
  const cmd = ["bash", "-c", command];
  const how = {
    ...(options.env !== undefined && { env: options.env }),
    ...(user !== undefined && { user }),
    ...(options.cwd !== undefined && { dir: options.cwd }),
  };
  if (options.background === true) {
    await sandbox.processes.start(cmd, how);
    return { stdout: "", stderr: "", exitCode: 0, durationMs: 0 };
  }
  const limit = options.timeout === undefined ? {} : { timeout_ms: options.timeout };
  if (options.onStdout === undefined && options.onStderr === undefined) {
    const { stdout, stderr, exit_code, timed_out, duration_ms } = await sandbox.exec(cmd, {
      ...how,
      ...limit,
    });
    return { stdout, stderr, exitCode: timed_out ? timedOutCode : exit_code, durationMs: duration_ms };
  }
  const text = { stdout: "", stderr: "" };
  for await (const event of sandbox.execStream(cmd, { ...how, ...limit })) {
    if (event.type === "exit") {
      const exitCode = event.timed_out ? timedOutCode : event.exit_code;
      return { ...text, exitCode, durationMs: event.duration_ms };
    }
    text[event.type] += event.data;
    (event.type === "stdout" ? options.onStdout : options.onStderr)?.(event.data);
  }
  throw new Error("the command did not end");
}

/** Its deletion is durable: for ComputeSDK there is no such sandbox any more. */
const isGoing = ({ info }: Sandbox): boolean => info.state === "SANDBOX_STATE_DELETING";

/** Undefined where the team has no such thing. */
async function unlessMissing<T>(call: Promise<T>): Promise<T | undefined> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof ClocheApiError && error.code === "not_found") return undefined;
    throw error;
  }
}

export const cloche = defineProvider<Sandbox, ClocheConfig>({
  name: "cloche",
  methods: {
    sandbox: {
      /** `snapshotId`: a new machine on that snapshot's disk. What ComputeSDK does not know (`cpus`, `memory_mb`, `egress`, …) goes through. */
      async create(config, options = {}) {
        const { timeout = config.timeout ?? lifetimeMs, envs, name, metadata, snapshotId, signal } = options;
        const known = new Set(["timeout", "envs", "name", "metadata", "snapshotId", "templateId", "signal"]);
        const others = ["sandboxId", "namespace", "directory", "ports", "runtime", "image"];
        const more = Object.fromEntries(
          Object.entries(options).filter(([key]) => !known.has(key) && !others.includes(key)),
        );
        const request = {
          ...more,
          ...(name !== undefined && { name }),
          ...(metadata !== undefined && { metadata: textsOf(metadata) }),
          ...(envs !== undefined && { env: envs }),
          ...(snapshotId !== undefined && { checkpoint_id: snapshotId }),
          ...(timeout > 0 && { timeout_seconds: Math.max(1, Math.ceil(timeout / 1_000)) }),
        };
        const calls = signal === undefined ? {} : { signal };
        const sandbox = await clientOf(config).create(request, calls);
        await sandbox.waitFor("SANDBOX_STATE_RUNNING", calls);
        return handed(sandbox, config);
      },

      async getById(config, sandboxId) {
        const sandbox = await unlessMissing(clientOf(config).get(sandboxId));
        return sandbox === undefined || isGoing(sandbox) ? null : handed(sandbox, config);
      },

      async list(config) {
        const found = [];
        for await (const sandbox of clientOf(config).list())
          if (!isGoing(sandbox)) found.push(handed(sandbox, config));
        return found;
      },

      async destroy(config, sandboxId) {
        await unlessMissing(clientOf(config).gateway.deleteSandbox(sandboxId));
      },

      runCommand: run,
      streamCommand: run,

      async getInfo(sandbox) {
        const { id, state, created_at, timeout_seconds, metadata, name } = await sandbox.refresh();
        const status =
          state === "SANDBOX_STATE_ERROR"
            ? "error"
            : state === "SANDBOX_STATE_RUNNING"
              ? "running"
              : "stopped";
        const timeout = (timeout_seconds ?? 0) * 1_000;
        return {
          id,
          provider: "cloche",
          status,
          createdAt: new Date(created_at),
          timeout,
          metadata: { ...metadata, name },
        };
      },

      /** The port's own domain: with the sandbox's token, or without where `public_ports` names the port. */
      async getUrl(sandbox, { port, protocol }) {
        const url = sandbox.portUrl(port);
        return protocol === undefined ? url : url.replace(/^https/, protocol);
      },

      filesystem: {
        readFile: async (sandbox, path) => await sandbox.files.readText(path, userOf(sandbox)),
        async writeFile(sandbox, path, content) {
          await sandbox.files.upload(path, content, userOf(sandbox));
        },
        async mkdir(sandbox, path) {
          await sandbox.files.mkdir(path, { parents: true, ...userOf(sandbox) });
        },
        async readdir(sandbox, path) {
          const { entries } = await sandbox.files.list(path, userOf(sandbox));
          return entries.map(({ name, is_dir, size, modified_at }) => ({
            name,
            type: is_dir ? ("directory" as const) : ("file" as const),
            size,
            modified: new Date(modified_at),
          }));
        },
        exists: async (sandbox, path) => (await sandbox.files.exists(path, userOf(sandbox))).exists,
        async remove(sandbox, path) {
          await sandbox.files.delete(path, { recursive: true, ...userOf(sandbox) });
        },
      },

      getInstance: (sandbox) => sandbox,
    },

    /** Checkpoints of the disk. */
    snapshot: {
      async create(config, sandboxId, { name } = {}) {
        const sandbox = await clientOf(config).get(sandboxId);
        const { checkpoint_id: id } = await sandbox.checkpoints.create({
          ...(name !== undefined && { name }),
        });
        return { id, provider: "cloche", createdAt: new Date(), metadata: { name } };
      },
      async list(config, { sandboxId, limit } = {}) {
        const request = sandboxId === undefined ? {} : { sandbox_id: sandboxId };
        const checkpoints = await clientOf(config).gateway.listCheckpoints(request);
        return checkpoints.slice(0, limit).map(({ id, sandbox_id, name, created_at }) => ({
          id,
          provider: "cloche",
          createdAt: new Date(created_at),
          metadata: { name, sandboxId: sandbox_id },
        }));
      },
      async delete(config, snapshotId) {
        await unlessMissing(clientOf(config).gateway.deleteCheckpoint(snapshotId));
      },
    },
  },
});

const textsOf = (metadata: Record<string, unknown>): Record<string, string> =>
  Object.fromEntries(Object.entries(metadata).map(([key, value]) => [key, String(value)]));
