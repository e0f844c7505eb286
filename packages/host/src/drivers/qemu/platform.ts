/**
 * The parts of this host's virtual machines: QEMU, accelerator, kernel, first root, system image, native programs. Their keys
 * decide which snapshots and templates fit. Built or found once at start; never changes while the driver runs.
 */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import {
  type AgentRoot,
  ensureHostPackages,
  guestNetwork,
  obtainVmFirstRoot,
  obtainVmKernel,
  obtainVmSystemImage,
  obtainVmTools,
  vmArch,
  type VmArch,
  type VmFirstRoot,
  type VmKernel,
  type VmSystemImage,
  type VmTools,
} from "@cloche/artifacts";
import type { Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { ClocheError } from "@cloche/protocol";
import { type Accelerator, qemuCommandLine, type VmShape } from "./command-line.ts";
import { type KvmVerdict, probeKvm } from "./kvm-probe.ts";

/** Raise when the layout of snapshot directories changes. */
const snapshotFormat = 1;
const keyChars = 16;
const firstQemuWithReadOnlyMemory = 9;

export interface VmPlatform {
  readonly arch: VmArch;
  readonly accelerator: Accelerator;
  /** Why machines are emulated, for the operator; undefined with KVM. */
  readonly emulatedBecause: string | undefined;
  /** As QEMU prints it, with the distribution's revision. */
  readonly qemuVersion: string;
  readonly readOnlyMemory: boolean;
  /** The host's CPU model, which guests see under KVM; empty under emulation. */
  readonly hostCpu: string;
  readonly kernel: VmKernel;
  readonly firstRoot: VmFirstRoot;
  readonly systemImage: VmSystemImage;
  readonly tools: VmTools;
}

export interface VmPlatformOptions {
  readonly cache: string;
  readonly agentRoot: AgentRoot;
  readonly progress: Progress;
  /** Default `auto`: KVM if it really runs our kernel. */
  readonly accelerator?: Accelerator | "auto";
}

/**
 * Whether KVM of this host really runs our guests. Without /dev/kvm it answers at once; otherwise it first obtains QEMU and the
 * kernel, because only a boot tells.
 */
export async function kvmVerdict(cache: string, progress: Progress): Promise<KvmVerdict> {
  if (!existsSync("/dev/kvm")) return { works: false, why: "this host has no /dev/kvm" };
  const { arch, qemuVersion, kernel } = await obtainQemu(cache, progress);
  return probeKvm(cache, arch, kernel, qemuVersion);
}

/** Installs QEMU if missing. Throws failed_precondition if QEMU does not run or the architecture is not supported. */
export async function obtainVmPlatform(options: VmPlatformOptions): Promise<VmPlatform> {
  const { cache, progress } = options;
  const { arch, qemuVersion, kernel } = await obtainQemu(cache, progress);
  const wanted = options.accelerator ?? "auto";
  const kvm =
    wanted === "auto" ? await probeKvm(cache, arch, kernel, qemuVersion) : { works: wanted === "kvm" };
  const accelerator = kvm.works ? "kvm" : "tcg";
  const tools = await obtainVmTools(cache, progress);
  const parts = { arch, kernel, agentRoot: options.agentRoot, tools };
  return {
    arch,
    accelerator,
    emulatedBecause: kvm.works ? undefined : "why" in kvm ? kvm.why : "emulation was asked for",
    qemuVersion,
    readOnlyMemory: Number.parseInt(qemuVersion, 10) >= firstQemuWithReadOnlyMemory,
    hostCpu: accelerator === "kvm" ? await hostCpu() : "",
    kernel,
    firstRoot: await obtainVmFirstRoot(cache, kernel, progress),
    systemImage: await obtainVmSystemImage(cache, parts, progress),
    tools,
  };
}

async function obtainQemu(
  cache: string,
  progress: Progress,
): Promise<{ arch: VmArch; qemuVersion: string; kernel: VmKernel }> {
  const arch = vmArch();
  await ensureHostPackages(progress, [{ program: arch.qemuProgram, debianPackage: arch.qemuPackage }]);
  return {
    arch,
    qemuVersion: await readQemuVersion(arch),
    kernel: await obtainVmKernel(cache, arch, progress),
  };
}

/** Device state and memory fit between platforms of equal key. Kernel and images do not matter: the snapshot has its own. */
export function hardwareKey(platform: VmPlatform, shape: VmShape): string {
  const { arch, accelerator, readOnlyMemory, qemuVersion, hostCpu } = platform;
  const commandLine = qemuCommandLine({ arch, accelerator, shape, start: "restore", readOnlyMemory });
  return hash(snapshotFormat, qemuVersion, hostCpu, commandLine, guestNetwork);
}

/** Names a template, by its hardware and all parts that it booted with. */
export function templateKey(platform: VmPlatform, shape: VmShape): string {
  const { arch, accelerator, readOnlyMemory, kernel, firstRoot, systemImage } = platform;
  const commandLine = qemuCommandLine({ arch, accelerator, shape, start: "boot", readOnlyMemory });
  return hash(hardwareKey(platform, shape), commandLine, kernel.key, firstRoot.key, systemImage.key);
}

function hash(...parts: unknown[]): string {
  return createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, keyChars);
}

async function readQemuVersion(arch: VmArch): Promise<string> {
  try {
    const { stdout } = await run([arch.qemuProgram, "--version"]);
    const version = /version (\S+(?: \([^)]*\))?)/.exec(stdout)?.[1];
    if (version) return version;
    throw new Error(`${arch.qemuProgram} --version does not look like QEMU`);
  } catch (cause) {
    throw new ClocheError("failed_precondition", "QEMU does not run on the host; use the runtime gvisor", {
      cause,
    });
  }
}

async function hostCpu(): Promise<string> {
  const text = await readFile("/proc/cpuinfo", "utf8");
  return [...text.matchAll(/^(?:model name|CPU part|flags|Features)\s*:\s*(.*)$/gm)]
    .slice(0, 2)
    .map((match) => match[1])
    .join("|");
}
