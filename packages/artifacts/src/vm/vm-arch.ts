/** Everything about virtual machines that depends on the processor architecture. */
import { ClocheError } from "@cloche/protocol";

export interface VmArch {
  /** QEMU's program and its Debian package. */
  readonly qemuProgram: string;
  readonly qemuPackage: string;
  /** Debian's metapackage of the generic kernel (the cloud one lacks the generation id driver). */
  readonly kernelPackage: string;
  /** Versioned, so that a snapshot finds the same hardware. The options turn off parts that our guests do not use. */
  readonly machine: string;
  readonly machineOptions: readonly string[];
  /** CPU model under KVM and under emulation. `host` fails on some hosts where `max` works. */
  readonly cpu: { readonly kvm: string; readonly tcg: string };
  /** The guest's name of the serial line. */
  readonly console: string;
  /** Device that reports a panic of the guest's kernel to QEMU. */
  readonly panicDevice: string;
  readonly panicModules: readonly string[];
  /** Bus of the virtio devices. */
  readonly virtioSuffix: "pci";
}

const arches: Readonly<Record<string, VmArch>> = {
  x64: {
    qemuProgram: "qemu-system-x86_64",
    qemuPackage: "qemu-system-x86",
    kernelPackage: "linux-image-amd64",
    machine: "pc-q35-7.2",
    machineOptions: ["sata=off", "smbus=off", "usb=off", "graphics=off", "vmport=off", "i8042=off"],
    cpu: { kvm: "max,migratable=on", tcg: "max" },
    console: "ttyS0",
    panicDevice: "pvpanic",
    panicModules: ["pvpanic", "pvpanic-mmio"],
    virtioSuffix: "pci",
  },
  // Not tried: no such machine at hand. `virt` has ACPI and the generation id device only with a UEFI firmware.
  arm64: {
    qemuProgram: "qemu-system-aarch64",
    qemuPackage: "qemu-system-arm",
    kernelPackage: "linux-image-arm64",
    machine: "virt-7.2",
    machineOptions: ["gic-version=max"],
    cpu: { kvm: "max", tcg: "max" },
    console: "ttyAMA0",
    panicDevice: "pvpanic-pci",
    panicModules: ["pvpanic", "pvpanic-pci"],
    virtioSuffix: "pci",
  },
};

/** Throws failed_precondition on an architecture that has no virtual machines. */
export function vmArch(arch: string = process.arch): VmArch {
  const found = arches[arch];
  if (!found)
    throw new ClocheError("failed_precondition", `virtual machines are not available on ${arch}; use gvisor`);
  return found;
}
