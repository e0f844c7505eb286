/**
 * Tests whether KVM of this host can run our guests: boots their kernel until it prints a line on its serial console. To open
 * /dev/kvm or to run a few instructions is not enough, because nested and restricted KVMs fail only later.
 */
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { probeRoot, type VmArch, type VmKernel } from "@cloche/artifacts";
import { CommandError, run } from "@cloche/base/run";
import { readJsonFile, writeDurably } from "@cloche/base";
import type { Accelerator } from "./command-line.ts";

const marker = "CLOCHE-GUEST-RUNS";
/** Under real KVM the kernel boots in about one second. */
const kvmDeadlineMs = 5_000;
const probeMemoryMb = 256;
/** A QEMU that hangs in the kernel ignores even SIGKILL: it is no longer waited for this long after its deadline. */
const graceMs = 2_000;

export interface KvmVerdict {
  readonly works: boolean;
  /** Why not; for the operator, may name paths. */
  readonly why?: string;
}

/** Remembers the verdict until the host reboots, or QEMU or the kernel change. */
export async function probeKvm(
  cache: string,
  arch: VmArch,
  kernel: VmKernel,
  qemuVersion: string,
  device = "/dev/kvm",
): Promise<KvmVerdict> {
  const boot = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  const subject = { boot, kernel: kernel.key, qemuVersion };
  const memory = join(cache, "kvm-probe.json");
  const known = (await readJsonFile(memory).catch(() => undefined)) as
    | { subject: typeof subject; verdict: KvmVerdict }
    | undefined;
  if (known && JSON.stringify(known.subject) === JSON.stringify(subject)) return known.verdict;
  const verdict = existsSync(device)
    ? await bootOnce(arch, kernel, "kvm", kvmDeadlineMs)
    : { works: false, why: `this host has no ${device}` };
  await writeDurably(memory, JSON.stringify({ subject, verdict }));
  return verdict;
}

/** Boots the kernel until it prints the marker and powers off. */
export async function bootOnce(
  arch: VmArch,
  kernel: VmKernel,
  accelerator: Accelerator,
  deadlineMs: number,
): Promise<KvmVerdict> {
  const dir = await mkdtemp(join(tmpdir(), "cloche-vm-probe-"));
  try {
    const root = join(dir, "root.cpio");
    await writeFile(root, await probeRoot(kernel, arch.console, marker));
    const options = [
      ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"],
      ["-machine", [arch.machine, ...arch.machineOptions].join(",")],
      ["-accel", accelerator, "-cpu", arch.cpu[accelerator], "-m", `${probeMemoryMb}M`],
      ["-kernel", kernel.kernel, "-initrd", root],
      ["-append", `console=${arch.console} quiet panic=-1`],
    ].flat();
    const { stdout } = await within(
      deadlineMs + graceMs,
      run([arch.qemuProgram, ...options], { deadlineMs }),
    );
    if (stdout.includes(marker)) return { works: true };
    return { works: false, why: `the kernel did not reach its first process: ${stdout.slice(-300).trim()}` };
  } catch (error) {
    if (!(error instanceof CommandError || error instanceof Hangs)) throw error;
    return { works: false, why: `a kernel does not boot under ${accelerator}: ${error.message}` };
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

class Hangs extends Error {}

/** Answers `result`; throws Hangs if it takes longer than `ms`. */
async function within<T>(ms: number, result: Promise<T>): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new Hangs(`it hangs, and does not end within ${ms} ms`)), ms);
  try {
    return await Promise.race([result, promise]);
  } finally {
    clearTimeout(timer);
    result.catch(() => undefined);
  }
}
