import { vmArch } from "@cloche/artifacts";
import { describe, expect, it } from "vitest";
import { qemuCommandLine } from "./command-line.ts";
import { shapeOf } from "./shape.ts";

const common = { arch: vmArch("x64"), accelerator: "tcg", shape: { vcpus: 2, memoryMb: 512 } } as const;
const boot = qemuCommandLine({ ...common, start: "boot", readOnlyMemory: false });
const restore = qemuCommandLine({ ...common, start: "restore", readOnlyMemory: false });

describe("qemuCommandLine", () => {
  it("gives a clone the very hardware that its template booted on", () => {
    const hardware = (line: string[]) =>
      line
        .slice(
          0,
          line.findIndex((word) => word === "-kernel" || word === "-incoming"),
        )
        .filter((word) => !word.includes("memory-backend-file"));
    expect(hardware(restore)).toEqual(hardware(boot));
  });

  it("shares memory with the file only while a template is made", () => {
    expect(boot.join(" ")).toContain("mem-path=/vm/memory,share=on");
    expect(restore.join(" ")).toContain("mem-path=/vm/base-memory,share=off");
    const newer = qemuCommandLine({ ...common, start: "restore", readOnlyMemory: true });
    expect(newer.join(" ")).toContain("share=off,readonly=on,rom=off");
  });

  it("locks QEMU in and names no path of the host", () => {
    const words = restore.join(" ");
    expect(words).toContain(
      "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    );
    const paths = [...words.matchAll(/(?<=[=": ])\/[^\s,"]+/g)].map(([path]) => path);
    expect(paths.length).toBeGreaterThan(3);
    expect(paths.filter((path) => !path.startsWith("/vm/") && !path.startsWith("/usr/bin/"))).toEqual([]);
  });
});

describe("shapeOf", () => {
  it("rounds processors up to whole ones that the host has, and memory to what a kernel needs", () => {
    expect(shapeOf({ cpus: 0.1, memoryMb: 128 }, 4)).toEqual({ vcpus: 1, memoryMb: 256 });
    expect(shapeOf({ cpus: 1.5, memoryMb: 1_025 }, 4)).toEqual({ vcpus: 2, memoryMb: 1_026 });
    expect(shapeOf({ cpus: 64, memoryMb: 512 }, 4)).toEqual({ vcpus: 4, memoryMb: 512 });
  });
});
