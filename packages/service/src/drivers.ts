/**
 * Which kinds of machine this host runs; the first is the default of CreateSandbox.
 *
 *   auto    QEMU first and gVisor beside it where KVM really boots our guest; else gVisor alone
 *   qemu    QEMU first, emulated where it must be (with a warning), and gVisor beside it
 *   gvisor  gVisor alone
 */
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { Config, Log } from "@cloche/base";
import {
  GvisorDriver,
  kvmVerdict,
  type MachineDriver,
  type Network,
  obtainVmPlatform,
  QemuDriver,
  type Runtime,
} from "@cloche/host";
import type { HostArtifacts } from "@cloche/host/setup";
import { defaults } from "@cloche/protocol";
import type { ProgressPrinter } from "./progress.ts";

export interface DriverParts {
  config: Config;
  artifacts: HostArtifacts;
  tag: string;
  network: Network;
  progress: ProgressPrinter;
  log: Log;
}

export async function makeDrivers(parts: DriverParts): Promise<Map<Runtime, MachineDriver>> {
  const drivers = new Map<Runtime, MachineDriver>();
  if (await wantsQemu(parts)) drivers.set("qemu", await makeQemu(parts));
  drivers.set("gvisor", makeGvisor(parts));
  return drivers;
}

async function wantsQemu({ config, progress, log }: DriverParts): Promise<boolean> {
  if (config.runtime !== "auto") return config.runtime === "qemu";
  const verdict = await kvmVerdict(config.cache, (step, detail) => progress.step(step, detail));
  if (!verdict.works) log.info({ why: verdict.why }, "KVM does not run guests here: gVisor is the runtime");
  return verdict.works;
}

async function makeQemu({
  config,
  artifacts,
  tag,
  network,
  progress,
  log,
}: DriverParts): Promise<MachineDriver> {
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
  return new QemuDriver({
    tag,
    platform,
    network,
    templatesDir: join(artifacts.pool.dir, "vm-templates"),
    native: artifacts.native,
    log: log.child({ part: "qemu" }),
    makeReadyFor: { cpus: defaults.cpus, memoryMb: defaults.memoryMb },
  });
}

function makeGvisor({ config, artifacts, tag, network, log }: DriverParts): MachineDriver {
  return new GvisorDriver({
    tag,
    runDir: `/run/cloche-${tag}/gvisor`,
    runsc: artifacts.runsc.path,
    keeper: artifacts.keeper,
    native: artifacts.native,
    agentRoot: artifacts.agentRoot,
    network,
    poolDir: artifacts.pool.dir,
    ready: config.warmPool,
    log: log.child({ part: "gvisor" }),
    randomBytes,
  });
}
