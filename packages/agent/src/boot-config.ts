import { readFileSync } from "node:fs";
import { defaults } from "@cloche/protocol";

/**
 * The agent's boot configuration: a JSON file named by its first argument. It has no data of a particular sandbox, so that a template
 * of a booted agent can become any sandbox (control/identity.ts).
 */
export interface BootConfig {
  /** Address to listen on. Default 0.0.0.0. */
  host: string;
  /** Default `defaults.agentPort`; 0 picks a free one (tests). */
  port: number;
  /** A socket that already listens on that port (cloche-guest listen). Absent: the agent opens one. */
  listenFd?: number;
  /** Mount point of the sandbox's disk: its `fs` is the users' root, its `cloche` the agent's data. Default /mnt/disk. */
  diskPath: string;
  /** SHA-256 (hex) of the control secret that is valid until Assign brings the next one. */
  bootstrapControlSecretSha256: string;
  /** Channel key (hex) of the same secret, valid until then too. */
  bootstrapChannelKey: string;
  /** Folder of the native spawner. Default: beside the bundle. */
  nativeDir: string;
  /** Kill users' processes before memory runs out and the whole machine is killed, as with gVisor. Default false. */
  memoryGuard: boolean;
  /** Users' programs get a user namespace, because they share the kernel with the agent (in a virtual machine). Default false. */
  userNamespace: boolean;
}

/** Reads and checks the boot config; throws an Error naming the field that is wrong. */
export function readBootConfig(path: string, bundleDir: string): BootConfig {
  const raw: unknown = JSON.parse(readFileSync(path, "utf8"));
  if (typeof raw !== "object" || raw === null) throw new Error("boot config must be a JSON object");
  const fields = raw as Record<string, unknown>;
  const text = (name: string, fallback?: string): string => {
    const value = fields[name] ?? fallback;
    if (typeof value !== "string" || value === "") throw new Error(`boot config: ${name} must be a string`);
    return value;
  };
  const port = fields["port"] ?? defaults.agentPort;
  if (typeof port !== "number" || !Number.isInteger(port) || port < 0 || port > 65_535) {
    throw new Error("boot config: port must be an integer from 0 to 65535");
  }
  const key = (name: string): string => {
    const value = text(name).toLowerCase();
    if (!/^[0-9a-f]{64}$/.test(value)) throw new Error(`boot config: ${name} must be 64 hex digits`);
    return value;
  };
  const listenFd = fields["listenFd"];
  if (
    listenFd !== undefined &&
    (typeof listenFd !== "number" || !Number.isInteger(listenFd) || listenFd < 3)
  ) {
    throw new Error("boot config: listenFd must be an integer from 3");
  }
  const memoryGuard = fields["memoryGuard"] ?? false;
  if (typeof memoryGuard !== "boolean") throw new Error("boot config: memoryGuard must be true or false");
  const userNamespace = fields["userNamespace"] ?? false;
  if (typeof userNamespace !== "boolean") throw new Error("boot config: userNamespace must be true or false");
  return {
    host: text("host", "0.0.0.0"),
    port,
    diskPath: text("diskPath", "/mnt/disk"),
    ...(listenFd !== undefined && { listenFd }),
    bootstrapControlSecretSha256: key("bootstrapControlSecretSha256"),
    bootstrapChannelKey: key("bootstrapChannelKey"),
    nativeDir: text("nativeDir", bundleDir),
    memoryGuard,
    userNamespace,
  };
}
