/**
 * The command line of QEMU, which defines a machine's hardware. A snapshot fits only the same hardware, so everything here is
 * part of a platform's key (platform.ts). All paths are inside the jail (native/vm/vm-launch.c), equal in every machine.
 */
import { guestNetwork, type VmArch } from "@cloche/artifacts";

export type Accelerator = "kvm" | "tcg";

/** The sizes that may differ between machines. Chosen by shape.ts; each field enters the keys of snapshots and templates (platform.ts). */
export interface VmShape {
  readonly vcpus: number;
  readonly memoryMb: number;
}

/** Names of the files in a machine's directory, which is /vm in the jail. */
export const vmFiles = {
  /** Of a template: its memory, shared. */
  memory: "memory",
  /** Of a clone: its memory at the start. The clone never changes the file. */
  baseMemory: "base-memory",
  disk: "disk.ext4",
  system: "system.ext4",
  kernel: "kernel",
  firstRoot: "first-root.cpio",
  /** Boot config of the agent, passed through the firmware's configuration device. */
  boot: "boot.json",
  /** QEMU writes the device state of a snapshot into it. */
  devices: "devices",
  socket: "qmp.sock",
  log: "qemu.log",
} as const;

const incomingFd = 3;
const tapFd = 4;
const qmpFd = 5;
/** Bytes kept of the serial line: the last output of the guest's kernel (vm.ts logs the end of it). A power of two. */
export const consoleBytes = 65_536;
const translationCacheMb = 128;

/** Names within QEMU. */
export const vmNodes = { disk: "disk", console: "console" } as const;
/** The device of the user's disk. */
export const guestDiskDevice = "vdb";

/** The user's disks of one QEMU, counted from 1: each swap has a new file name and block node. */
export function diskOf(number: number): { readonly file: string; readonly node: string } {
  return number === 1
    ? { file: vmFiles.disk, node: "disk-file" }
    : { file: `disk-${number}.ext4`, node: `disk-file-${number}` };
}

export interface CommandLineOptions {
  readonly arch: VmArch;
  readonly accelerator: Accelerator;
  readonly shape: VmShape;
  /** `boot`: cold, memory shared with a file that becomes a template. `restore`: from device state and base memory. */
  readonly start: "boot" | "restore";
  /** QEMU from 9.0 on can map a file privately that it may only read. */
  readonly readOnlyMemory: boolean;
}

export function qemuCommandLine(options: CommandLineOptions): string[] {
  return [...hardware(options), ...(options.start === "boot" ? bootOptions(options) : restoreOptions())];
}

function hardware({ arch, accelerator, shape, start, readOnlyMemory }: CommandLineOptions): string[] {
  const accel = accelerator === "kvm" ? "kvm" : `tcg,thread=multi,tb-size=${translationCacheMb}`;
  const memory =
    start === "boot"
      ? `mem-path=/vm/${vmFiles.memory},share=on`
      : `mem-path=/vm/${vmFiles.baseMemory},share=off${readOnlyMemory ? ",readonly=on,rom=off" : ""}`;
  const virtio = arch.virtioSuffix;
  return [
    [`/usr/bin/${arch.qemuProgram}`],
    ["-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-monitor", "none"],
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
    [
      "-machine",
      [arch.machine, ...arch.machineOptions, "memory-backend=ram", "suppress-vmdesc=on"].join(","),
    ],
    ["-accel", accel, "-cpu", arch.cpu[accelerator]],
    ["-smp", String(shape.vcpus), "-m", `${shape.memoryMb}M`],
    ["-object", `memory-backend-file,id=ram,size=${shape.memoryMb}M,${memory}`],
    ["-global", "migration.send-configuration=off"],
    ["-rtc", "base=utc,clock=host"],
    // A panic pauses the machine, so that its last output can be read. A reboot ends it, because the host starts machines.
    ["-action", "panic=pause,reboot=shutdown"],
    ["-device", arch.panicDevice],
    ["-device", "vmgenid,guid=auto,id=generation"],
    [
      "-chardev",
      `ringbuf,id=${vmNodes.console},size=${consoleBytes}`,
      "-serial",
      `chardev:${vmNodes.console}`,
    ],
    ["-blockdev", `driver=file,node-name=system-file,filename=/vm/${vmFiles.system},read-only=on`],
    ["-blockdev", "driver=raw,node-name=system,file=system-file,read-only=on"],
    ["-device", `virtio-blk-${virtio},drive=system,id=vda`],
    ["-blockdev", JSON.stringify(diskFileNode(diskOf(1).file, diskOf(1).node))],
    ["-blockdev", JSON.stringify(diskNode(diskOf(1).node))],
    // Report errors to the guest: a full pool must not pause the machine silently.
    [
      "-device",
      `virtio-blk-${virtio},drive=${vmNodes.disk},id=${guestDiskDevice},werror=report,rerror=report`,
    ],
    ["-netdev", `tap,id=net,fd=${tapFd}`],
    ["-device", `virtio-net-${virtio},netdev=net,id=eth0,mac=${guestNetwork.guestMac},romfile=`],
    ["-fw_cfg", `name=opt/cloche/boot,file=/vm/${vmFiles.boot}`],
    ["-chardev", `socket,id=qmp,fd=${qmpFd},server=on,wait=off`, "-mon", "chardev=qmp,mode=control"],
  ].flat();
}

function bootOptions({ arch }: CommandLineOptions): string[] {
  return [
    ["-kernel", `/vm/${vmFiles.kernel}`, "-initrd", `/vm/${vmFiles.firstRoot}`],
    ["-append", kernelParameters(arch)],
  ].flat();
}

/** No kernel and no first root: the guest has them in its memory. */
function restoreOptions(): string[] {
  return ["-incoming", `fd:${incomingFd}`];
}

export function kernelParameters(arch: VmArch): string {
  return [
    `console=${arch.console}`,
    "quiet",
    // The panic device reports every panic. If that fails, the machine reboots, which ends it.
    "panic=-1 oops=panic",
    // IPv6 only on the loopback, for which system-init.sh enables it (::1).
    "ipv6.disable_ipv6=1",
    // Not even the guest's root reads or writes the kernel's memory; only Debian's modules load.
    "lockdown=confidentiality",
    // Only cgroup version 2: version 1 can name a program that the kernel starts.
    "cgroup_no_v1=all",
  ].join(" ");
}

/** The user's disk: block nodes for -blockdev and for the QMP commands that swap it. `file` lies in the machine's directory. */
export function diskFileNode(file: string, nodeName: string): object {
  return { driver: "file", "node-name": nodeName, filename: `/vm/${file}`, discard: "unmap", locking: "on" };
}

export function diskNode(fileNode: string): object {
  return { driver: "raw", "node-name": vmNodes.disk, file: fileNode, discard: "unmap" };
}

/** The guest's name of the user's disk. */
export const guestBlockDevice = `/dev/${guestDiskDevice}`;
