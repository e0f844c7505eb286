/**
 * The guests' kernel: Debian's generic kernel, unpacked privately (nothing is installed on the computer), with the modules that a
 * sandbox may need.
 */
import { mkdir, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { obtainBusybox } from "../rootfs/busybox.ts";
import type { PrivateApt, Versions } from "../apt/private-apt.ts";
import { unpackPrivateDebs } from "../apt/private-deb.ts";
import { obtainVersioned, type VersionedRequest } from "../store/versioned.ts";
import type { VmArch } from "./vm-arch.ts";

/** Raise when other files of the packages are kept. */
const recipeVersion = 1;
const repair =
  "check that the Debian mirror of this machine can be reached (apt-get update) and run the command again";

/** Modules loaded before the system disk is mounted, in this order, with their dependencies. */
const neededModules = ["crc32c_generic", "ext4", "virtio_pci", "virtio_blk", "virtio_net", "qemu_fw_cfg"];

/** Modules that the guest's kernel loads on demand: containers, overlays, bridges, packet filters, tunnels. */
const demandModules =
  "overlay fuse loop veth bridge br_netfilter tun dummy macvlan ipvlan vxlan ifb sch_htb sch_fq_codel tcp_bbr wireguard squashfs xfs btrfs dm-mod".split(
    " ",
  );
/** Whole folders of the kernel's tree. */
const demandFolders = [
  "kernel/net/netfilter/",
  "kernel/net/ipv4/netfilter/",
  "kernel/net/ipv6/netfilter/",
  "kernel/net/bridge/netfilter/",
];

export interface VmKernel {
  readonly key: string;
  /** The bootable image. */
  readonly kernel: string;
  /** For example "6.1.0-56-amd64". */
  readonly release: string;
  /** Holds `lib/modules/<release>` with a module index. */
  readonly moduleRoot: string;
  /** Static busybox for the guest. */
  readonly busybox: string;
  /** Paths below `moduleRoot` of the modules that the first root loads, dependencies first. */
  readonly bootModules: readonly string[];
}

/** Takes about 15 s if the kernel has to be fetched. */
export function obtainVmKernel(cache: string, arch: VmArch, progress: Progress): Promise<VmKernel> {
  return inStep(progress, "kernel of virtual machines", repair, async (detail) => {
    const boot = bootModules(arch);
    const busybox = await obtainBusybox(cache, progress);
    const request = vmKernelRequest(cache, arch, detail);
    const artifact = await obtainVersioned(cache, request, (_step, text) => detail(text ?? ""));
    const release = await onlyEntry(join(artifact.path, "lib/modules"));
    return {
      key: `${artifact.key}-${release}`,
      kernel: join(artifact.path, "kernel"),
      release,
      moduleRoot: artifact.path,
      busybox,
      bootModules: await withDependencies(artifact.path, release, boot, []),
    };
  });
}

const bootModules = (arch: VmArch): string[] => [...neededModules, ...arch.panicModules];

export function vmKernelRequest(
  cache: string,
  arch: VmArch,
  detail: (text: string) => void,
): VersionedRequest {
  const boot = bootModules(arch);
  return {
    kind: "vm-kernel",
    inputs: {
      recipe: recipeVersion,
      package: arch.kernelPackage,
      boot,
      demand: demandModules,
      folders: demandFolders,
    },
    build: async (dir) =>
      build(dir, arch, boot, await obtainBusybox(cache, (_step, text) => text && detail(text)), detail),
  };
}

/** The packages that a build now would use. */
export const vmKernelPackages = (apt: PrivateApt, arch: VmArch): Promise<string[]> =>
  apt.dependencies([arch.kernelPackage]);

async function build(
  dir: string,
  arch: VmArch,
  boot: readonly string[],
  busybox: string,
  detail: (text: string) => void,
): Promise<Versions> {
  const unpacked = join(dir, "unpacked");
  detail(`fetching ${arch.kernelPackage}`);
  const versions = await unpackPrivateDebs({
    packages: [arch.kernelPackage],
    dependenciesOnly: true,
    into: unpacked,
  });
  const release = await onlyEntry(join(unpacked, "lib/modules"));
  await rename(join(unpacked, `boot/vmlinuz-${release}`), join(dir, "kernel"));
  detail("choosing modules");
  await run([busybox, "depmod", "-b", unpacked, release]);
  for (const module of await withDependencies(
    unpacked,
    release,
    [...boot, ...demandModules],
    demandFolders,
  )) {
    await mkdir(dirname(join(dir, module)), { recursive: true });
    await rename(join(unpacked, module), join(dir, module));
  }
  const index = join("lib/modules", release);
  for (const name of await readdir(join(unpacked, index)))
    if (/^modules\.(builtin|order)/.test(name))
      await rename(join(unpacked, index, name), join(dir, index, name));
  await rm(unpacked, { recursive: true });
  await run([busybox, "depmod", "-b", dir, release]);
  return versions;
}

/** Module files below `root` with their dependencies, dependencies first. */
async function withDependencies(
  root: string,
  release: string,
  names: readonly string[],
  folders: readonly string[],
): Promise<string[]> {
  const base = join("lib/modules", release);
  const needs = parseModuleIndex(await readFile(join(root, base, "modules.dep"), "utf8"));
  const builtin = (await readFile(join(root, base, "modules.builtin"), "utf8")).split("\n").map(moduleName);
  return inLoadOrder(needs, new Set(builtin), names, folders).map((file) => join(base, file));
}

/** The files of `names` and of whole `folders`, dependencies first. Throws for a name that is neither a file nor built in. */
export function inLoadOrder(
  needs: ReadonlyMap<string, readonly string[]>,
  builtin: ReadonlySet<string>,
  names: readonly string[],
  folders: readonly string[],
): string[] {
  const byName = new Map([...needs.keys()].map((file) => [moduleName(file), file]));
  const ordered = new Set<string>();
  const add = (file: string): void => {
    if (ordered.has(file)) return;
    for (const need of needs.get(file) ?? []) add(need);
    ordered.add(file);
  };
  for (const name of names.map(moduleName)) {
    const file = byName.get(name);
    if (file) add(file);
    else if (!builtin.has(name)) throw new Error(`the kernel has no module ${name}`);
  }
  for (const file of needs.keys()) if (folders.some((folder) => file.startsWith(folder))) add(file);
  return [...ordered];
}

/** Parses modules.dep: `file: its dependencies`. */
export function parseModuleIndex(text: string): Map<string, string[]> {
  const needs = new Map<string, string[]>();
  for (const line of text.split("\n")) {
    const [file, rest] = line.split(":");
    if (file) needs.set(file, rest?.trim() ? rest.trim().split(/\s+/) : []);
  }
  return needs;
}

/** The kernel treats dashes and underscores as equal. */
function moduleName(file: string): string {
  return (file.split("/").at(-1) ?? "").replace(/\.ko$/, "").replaceAll("-", "_");
}

async function onlyEntry(dir: string): Promise<string> {
  const names = await readdir(dir);
  if (names.length !== 1 || !names[0])
    throw new Error(`${dir} should have one entry, it has ${names.length}`);
  return names[0];
}
