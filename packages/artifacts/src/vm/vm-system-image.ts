/**
 * The system image of virtual machines: the agent's read-only root as an ext4 file system, with busybox, kernel modules and
 * process 1 below /cloche-vm. Made without mounting anything. All machines share it, read-only; users never see it.
 */
import { mkdir, readFile, rm, symlink, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { guestNetwork } from "./guest-network.ts";
import type { AgentRoot } from "../rootfs/agent-root.ts";
import { obtainArtifact } from "../store/store.ts";
import type { VmArch } from "./vm-arch.ts";
import type { VmTools } from "./vm-tools.ts";
import type { VmKernel } from "./vm-kernel.ts";

const recipeVersion = 1;
const initScript = fileURLToPath(new URL("./guest/system-init.sh", import.meta.url));
const ourFolder = "cloche-vm";
const mountPoints = ["dev", "proc", "sys", "run", "tmp", "mnt"];
const applets =
  "sh mount umount mkdir ln cat ip hostname poweroff modprobe insmod rmmod sync date echo sleep ls ps dmesg blockdev kill".split(
    " ",
  );
const mke2fsOptions = "-L system -b 4096 -m 0 -O ^has_journal -E root_owner=0:0,lazy_itable_init=0".split(
  " ",
);
/** Room that mke2fs needs besides the files. */
const spareMb = 24;

export interface VmSystemParts {
  readonly arch: VmArch;
  readonly kernel: VmKernel;
  readonly agentRoot: AgentRoot;
  readonly tools: VmTools;
}

export interface VmSystemImage {
  readonly key: string;
  readonly path: string;
}

export function obtainVmSystemImage(
  cache: string,
  parts: VmSystemParts,
  progress: Progress,
): Promise<VmSystemImage> {
  const repair = "free some disk space and run the command again";
  return inStep(progress, "system image of virtual machines", repair, async (detail) => {
    const init = systemInit(await readFile(initScript, "utf8"), parts.arch, parts.agentRoot);
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "vm-system",
        inputs: {
          recipe: recipeVersion,
          kernel: parts.kernel.key,
          agentRoot: parts.agentRoot.key,
          init,
          tools: parts.tools.key,
        },
        build: (dir) => build(dir, parts, init),
      },
      (_step, text) => detail(text ?? ""),
    );
    return { key: artifact.key, path: join(artifact.path, "system.ext4") };
  });
}

function systemInit(template: string, arch: VmArch, agentRoot: AgentRoot): string {
  const values: Record<string, string> = {
    GUEST_ADDRESS: guestNetwork.guestAddress,
    PREFIX_LENGTH: String(guestNetwork.prefixLength),
    GATEWAY_ADDRESS: guestNetwork.gatewayAddress,
    CONSOLE: arch.console,
    AGENT_ENVIRONMENT: environment(agentRoot.env),
    AGENT_COMMAND: agentRoot.argv.map(quote).join(" "),
  };
  return template.replace(/@([A-Z_]+)@/g, (_, name: string) => {
    const value = values[name];
    if (value === undefined) throw new Error(`system-init.sh needs ${name}, which is not set`);
    return value;
  });
}

/** The agent uses programs such as `mount`, so our folder is last on its PATH. */
function environment(env: readonly string[]): string {
  const lines = env.map((entry) => `export ${quote(entry)}`);
  return [...lines, `export PATH="$PATH:/${ourFolder}/bin"`].join("\n");
}

function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

async function build(dir: string, { kernel, agentRoot, tools }: VmSystemParts, init: string): Promise<void> {
  const root = join(dir, "root");
  await run(["cp", "-a", "--reflink=auto", `${agentRoot.dir}/.`, root]);
  for (const name of mountPoints) await mkdir(join(root, name), { recursive: true });
  const bin = join(root, ourFolder, "bin");
  await mkdir(bin, { recursive: true });
  await run(["cp", kernel.busybox, join(bin, "busybox")]);
  await run(["cp", tools.clock, join(bin, "vm-clock")]);
  for (const applet of applets) await symlink("busybox", join(bin, applet));
  await writeFile(join(root, ourFolder, "init"), init, { mode: 0o755 });
  // The folder of modprobe. In the agent's root /lib may be a link.
  await mkdir(join(root, "lib"), { recursive: true });
  await run(["cp", "-a", join(kernel.moduleRoot, "lib/modules"), join(root, "lib/")]);
  const { stdout } = await run(["du", "-s", "--apparent-size", "-B", "1M", root]);
  const image = join(dir, "system.ext4");
  await writeFile(image, "");
  const sizeMb = Math.ceil(Number.parseInt(stdout, 10) * 1.1) + spareMb;
  await truncate(image, sizeMb * 1024 * 1024);
  await run(["mke2fs", "-q", "-t", "ext4", ...mke2fsOptions, "-d", root, image], {
    deadlineMs: 10 * 60_000,
  });
  await rm(root, { recursive: true });
}
