/**
 * Chooses the runtimes of this host; the first is the default of CreateSandbox.
 *
 *   auto    QEMU and gVisor if KVM boots our guest; else only gVisor
 *   qemu    QEMU and gVisor; QEMU emulates, with a warning, if KVM does not work
 *   gvisor  only gVisor
 *
 * A host in a pod runs only gVisor: QEMU needs libraries that the node does not have, and would not outlive the pod.
 */
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { Config, Log } from "@cloche/base";
import {
  GvisorDriver,
  type GvisorOptions,
  kvmVerdict,
  type MachineDriver,
  type Network,
  obtainVmPlatform,
  QemuDriver,
  type QemuDriverOptions,
  type Runtime,
  type VmPlatform,
} from "@cloche/host";
import type { HostSetup } from "@cloche/host/setup";
import { ClocheError, defaults } from "@cloche/protocol";
import type { ProgressPrinter } from "./progress.ts";

export interface DriverParts {
  config: Config;
  artifacts: HostSetup;
  tag: string;
  network: Network;
  progress: ProgressPrinter;
  log: Log;
}

export interface Drivers {
  drivers: Map<Runtime, MachineDriver>;
  /** True if virtual machines run without KVM. */
  emulated: boolean;
}

export async function makeDrivers(parts: DriverParts): Promise<Drivers> {
  const drivers = new Map<Runtime, MachineDriver>();
  let emulated = false;
  if (await wantsQemu(parts)) {
    const platform = await qemuPlatform(parts);
    emulated = platform.accelerator === "tcg";
    drivers.set("qemu", new QemuDriver(qemuOptions(parts, platform)));
  }
  drivers.set("gvisor", new GvisorDriver(gvisorOptions(parts)));
  return { drivers, emulated };
}

async function wantsQemu({ config, progress, log }: DriverParts): Promise<boolean> {
  if (config.hostInPod) {
    if (config.runtime !== "qemu") return false;
    const why = "a host in a pod runs gVisor alone; set CLOCHE_RUNTIME to gvisor or auto";
    throw new ClocheError("failed_precondition", `CLOCHE_RUNTIME is qemu, and ${why}`);
  }
  if (config.runtime !== "auto") return config.runtime === "qemu";
  const verdict = await kvmVerdict(config.cache, (step, detail) => progress.step(step, detail)).catch(
    // For example QEMU or its kernel cannot be fetched: start without virtual machines.
    (error: Error) => ({ works: false, why: `KVM could not be tried: ${error.message}` }),
  );
  if (!verdict.works) log.info({ why: verdict.why }, "KVM does not run guests here: gVisor is the runtime");
  return verdict.works;
}

async function qemuPlatform({ config, artifacts, progress }: DriverParts): Promise<VmPlatform> {
  const platform = await obtainVmPlatform({
    cache: config.cache,
    agentRoot: artifacts.agentRoot,
    progress: (step, detail) => progress.step(step, detail),
  });
  if (platform.accelerator === "tcg") {
    progress.step(
      "virtual machines are EMULATED here (no working KVM): they work, many times slower than gVisor",
    );
  }
  return platform;
}

export function qemuOptions(parts: DriverParts, platform: VmPlatform): QemuDriverOptions {
  const { config, artifacts, tag, network, log } = parts;
  const hungAfterMs = config.vmHangSeconds * 1_000;
  return {
    tag,
    platform,
    network,
    templatesDir: join(artifacts.pool.dir, "vm-templates"),
    native: artifacts.native,
    log: log.child({ part: "qemu" }),
    makeReadyFor: { cpus: defaults.cpus, memoryMb: defaults.memoryMb },
    ...(hungAfterMs > 0 && { health: healthOf(hungAfterMs) }),
  };
}

const healthOf = (hungAfterMs: number) => ({ intervalMs: Math.min(10_000, hungAfterMs / 3), hungAfterMs });

export function gvisorOptions({ config, artifacts, tag, network, log }: DriverParts): GvisorOptions {
  return {
    tag,
    runDir: `/run/cloche-${tag}/gvisor`,
    runsc: artifacts.runsc.path,
    runscVersion: artifacts.runsc.version,
    keeper: artifacts.keeper,
    native: artifacts.native,
    agentRoot: artifacts.agentRoot,
    network,
    poolDir: artifacts.pool.dir,
    ready: config.warmPool,
    readyMost: config.warmPoolMax,
    hangsDir: join(config.home, "log", "hangs"),
    health: healthOf(config.gvisorHangSeconds * 1_000),
    log: log.child({ part: "gvisor" }),
    randomBytes,
  };
}
