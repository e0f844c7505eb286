import { describe, expect, it } from "vitest";
import { inLoadOrder, parseModuleIndex } from "./vm-kernel.ts";

const index = parseModuleIndex(
  [
    "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/fs/mbcache.ko",
    "kernel/fs/jbd2/jbd2.ko: kernel/lib/crc.ko",
    "kernel/fs/mbcache.ko:",
    "kernel/lib/crc.ko:",
    "kernel/net/netfilter/nf_a.ko: kernel/lib/crc.ko",
    "kernel/drivers/char/hw_random/virtio-rng.ko:",
    "",
  ].join("\n"),
);

describe("inLoadOrder", () => {
  it("puts what is needed before what needs it, each once", () => {
    expect(inLoadOrder(index, new Set(), ["ext4"], ["kernel/net/netfilter/"])).toEqual([
      "kernel/lib/crc.ko",
      "kernel/fs/jbd2/jbd2.ko",
      "kernel/fs/mbcache.ko",
      "kernel/fs/ext4/ext4.ko",
      "kernel/net/netfilter/nf_a.ko",
    ]);
  });

  it("takes dashes for underscores, and leaves out what is built in", () => {
    expect(inLoadOrder(index, new Set(["vmgenid"]), ["virtio_rng", "vmgenid"], [])).toEqual([
      "kernel/drivers/char/hw_random/virtio-rng.ko",
    ]);
  });

  it("refuses a module that the kernel does not have", () => {
    expect(() => inLoadOrder(index, new Set(), ["zfs"], [])).toThrow("no module zfs");
  });
});
