/**
 * The first root file system of virtual machines (initramfs): busybox, the boot modules and our first process.
 */
import { readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { inStep, type Progress } from "@cloche/base";
import { cpioArchive, cpioDirectory, type CpioEntry, cpioFile } from "./cpio.ts";
import { obtainArtifact } from "../store/store.ts";
import type { VmKernel } from "./vm-kernel.ts";

const initScript = fileURLToPath(new URL("./guest/first-root-init.sh", import.meta.url));
const mountPoints = ["bin", "dev", "proc", "sys", "system"];

export interface VmFirstRoot {
  readonly key: string;
  readonly path: string;
}

export function obtainVmFirstRoot(cache: string, kernel: VmKernel, progress: Progress): Promise<VmFirstRoot> {
  return inStep(
    progress,
    "first root of virtual machines",
    "free some disk space and try again",
    async () => {
      const init = await readFile(initScript);
      const artifact = await obtainArtifact(
        cache,
        {
          kind: "vm-first-root",
          inputs: { recipe: 1, kernel: kernel.key, modules: kernel.bootModules, init: init.toString() },
          // Not compressed: under emulation unpacking takes longer than reading.
          build: async (dir) => writeFile(join(dir, "first-root.cpio"), await archive(kernel, init)),
        },
        progress,
      );
      return { key: artifact.key, path: join(artifact.path, "first-root.cpio") };
    },
  );
}

/** A root that prints `marker` on the serial line and powers off, to test whether a machine can run at all. */
export async function probeRoot(kernel: VmKernel, console: string, marker: string): Promise<Buffer> {
  const init = `#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
echo ${marker} > /dev/${console}
/bin/busybox poweroff -f
`;
  return cpioArchive([
    ...mountPoints.map(cpioDirectory),
    cpioFile("bin/busybox", await readFile(kernel.busybox), true),
    cpioFile("init", Buffer.from(init), true),
  ]);
}

async function archive(kernel: VmKernel, init: Buffer): Promise<Buffer> {
  const entries: CpioEntry[] = [
    ...mountPoints.map(cpioDirectory),
    cpioFile("init", init, true),
    cpioFile("bin/busybox", await readFile(kernel.busybox), true),
    cpioFile("boot-modules", Buffer.from(`${kernel.bootModules.join("\n")}\n`)),
  ];
  const directories = new Set<string>();
  for (const module of kernel.bootModules) {
    for (const parent of parents(module)) {
      if (!directories.has(parent)) entries.push(cpioDirectory(parent));
      directories.add(parent);
    }
    entries.push(cpioFile(module, await readFile(join(kernel.moduleRoot, module))));
  }
  return cpioArchive(entries);
}

/** "a/b/c" gives "a", "a/b". */
function parents(path: string): string[] {
  const parent = dirname(path);
  return parent === "." ? [] : [...parents(parent), parent];
}
