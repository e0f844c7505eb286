/**
 * The OCI bundle of one runsc sandbox: the agent on its shared read-only root, the slot directory at /mnt.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { agentClock, agentDir } from "@cloche/artifacts";
import { type CgroupLimits, type CpuWeight, ociResources } from "../cgroup.ts";

export interface AgentRoot {
  /** Read-only root directory shared by all sandboxes. */
  readonly dir: string;
  /** Command of the agent in that root; the path of its boot config is appended. */
  readonly argv: readonly string[];
  readonly env: readonly string[];
}

export interface BundleOptions {
  agentRoot: AgentRoot;
  slotDir: string;
  cgroupsPath: string;
  namespacePath: string;
  limits: CgroupLimits;
  weight: CpuWeight;
}

/** Where the slot directory is mounted in the sandbox. It has the boot config, and the disk once attached. */
export const slotMount = "/mnt";

// The agent and its spawner are root inside; the spawner decides what users' processes may do.
const agentCapabilities =
  "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP"
    .split(" ")
    .map((name) => `CAP_${name}`);
/** For users' processes too. In a VM: `ulimit` in artifacts/src/vm/guest/system-init.sh. */
const openFiles = 1_048_576;

export async function writeBundle(dir: string, options: BundleOptions): Promise<void> {
  await mkdir(dir, { recursive: true });
  await writeFile(join(dir, "config.json"), JSON.stringify(spec(options)));
}

function spec(options: BundleOptions): object {
  const { agentRoot } = options;
  return {
    ociVersion: "1.0.2",
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      args: [...agentRoot.argv, `${slotMount}/boot.json`],
      env: [...agentRoot.env, `LD_PRELOAD=${agentDir}/${agentClock}`],
      cwd: "/",
      capabilities: {
        bounding: agentCapabilities,
        effective: agentCapabilities,
        permitted: agentCapabilities,
      },
      rlimits: [{ type: "RLIMIT_NOFILE", hard: openFiles, soft: openFiles }],
    },
    root: { path: agentRoot.dir, readonly: true },
    hostname: "sandbox",
    mounts: [
      { destination: "/proc", type: "proc", source: "proc" },
      { destination: "/tmp", type: "tmpfs", source: "tmpfs", options: ["nosuid", "nodev"] },
      // rslave: a disk that the host mounts into the slot directory later appears in the sandbox.
      {
        destination: slotMount,
        type: "bind",
        source: options.slotDir,
        options: ["rbind", "rslave", "rw"],
      },
    ],
    linux: {
      cgroupsPath: options.cgroupsPath,
      resources: ociResources(options.limits, options.weight),
      namespaces: [
        { type: "pid" },
        { type: "ipc" },
        { type: "uts" },
        { type: "mount" },
        { type: "network", path: options.namespacePath },
      ],
    },
  };
}
