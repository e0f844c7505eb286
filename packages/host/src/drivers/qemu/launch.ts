/** Starts QEMU in its jail (native/vm/vm-launch.c). The process is not our child and outlives the service. */
import { guestNetwork } from "@cloche/artifacts";
import { run } from "@cloche/base/run";
import { identify, type ProcessIdentity } from "../process-identity.ts";
import { type CommandLineOptions, qemuCommandLine } from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";

export interface LaunchOptions {
  readonly id: string;
  readonly vmDir: string;
  readonly uid: number;
  readonly namespacePath: string;
  readonly cgroupFiles: readonly string[];
  readonly shape: CommandLineOptions["shape"];
  /** Device state to restore; absent: a cold boot. */
  readonly devices?: string;
}

export async function launchQemu(
  environment: VmEnvironment,
  options: LaunchOptions,
): Promise<ProcessIdentity> {
  const { arch, accelerator, readOnlyMemory, tools } = environment.platform;
  const start = options.devices === undefined ? "boot" : "restore";
  const preload = start === "restore" && !readOnlyMemory;
  const jail = [
    ["--vm", options.vmDir, "--uid", String(options.uid)],
    ["--netns", options.namespacePath, "--tap", guestNetwork.tap],
    options.cgroupFiles.flatMap((file) => ["--cgroup", file]),
    options.devices === undefined ? [] : ["--incoming", options.devices],
    preload ? ["--preload", tools.openReadOnly] : [],
    accelerator === "kvm" ? ["--kvm"] : [],
  ].flat();
  const qemu = qemuCommandLine({ arch, accelerator, shape: options.shape, start, readOnlyMemory });
  const mark = processMark(environment.tag, options.id);
  const { stdout } = await run([tools.launch, ...jail, "--", ...qemu, "-name", mark]);
  const process = await identify(Number.parseInt(stdout, 10));
  if (!process) throw new Error("QEMU ended right after its start; its log lies in the machine's directory");
  return process;
}

/** Marks a QEMU of ours in the list of all processes. */
export const processMark = (tag: string, id: string): string => `cloche-vm/${tag}/${id}`;
