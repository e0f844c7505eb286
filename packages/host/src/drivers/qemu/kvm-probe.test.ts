import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { vmArch, type VmArch, type VmKernel } from "@cloche/artifacts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { bootOnce, probeKvm } from "./kvm-probe.ts";

let dir = "";
let kernel: VmKernel;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "kvm-probe-test-"));
  const busybox = join(dir, "busybox");
  await writeFile(busybox, "busybox");
  kernel = { key: "kernel-1", kernel: busybox, busybox } as VmKernel;
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** A stand-in for QEMU; each run adds a line to `runs`. */
async function qemu(script: string): Promise<VmArch> {
  const program = join(dir, "qemu");
  await writeFile(program, `#!/bin/sh\necho run >> ${join(dir, "runs")}\n${script}\n`);
  await chmod(program, 0o755);
  return { ...vmArch("x64"), qemuProgram: program };
}
const runs = async (): Promise<number> =>
  (await readFile(join(dir, "runs"), "utf8").catch(() => "")).split("\n").length - 1;

describe("bootOnce", () => {
  it("takes a guest that says its word on the console", async () => {
    const arch = await qemu("echo noise; echo CLOCHE-GUEST-RUNS");
    expect(await bootOnce(arch, kernel, "kvm", 20_000)).toEqual({ works: true });
  });

  it("does not take a QEMU that ends without it, as a guest that resets at once makes it", async () => {
    const verdict = await bootOnce(await qemu("echo SeaBIOS"), kernel, "kvm", 20_000);
    expect(verdict).toMatchObject({ works: false, why: expect.stringContaining("SeaBIOS") });
  });

  it("says why where access is refused", async () => {
    const refused = 'echo "Could not access KVM kernel module: Permission denied" >&2; exit 1';
    const verdict = await bootOnce(await qemu(refused), kernel, "kvm", 20_000);
    expect(verdict).toMatchObject({ works: false, why: expect.stringContaining("Permission denied") });
  });

  it("ends a QEMU that hangs, whatever signals it ignores", async () => {
    const verdict = await bootOnce(await qemu("trap '' TERM; exec sleep 600"), kernel, "kvm", 300);
    expect(verdict).toMatchObject({
      works: false,
      why: expect.stringContaining("not finished after 300 ms"),
    });
  });

  it("does not wait for what holds its output open after its end", async () => {
    // The sleep outlives the killed shell, like a QEMU that hangs in the kernel.
    const pidFile = join(dir, "pid");
    const verdict = await bootOnce(
      await qemu(`sleep 600 & echo $! > ${pidFile}; wait`),
      kernel,
      "kvm",
      3_000,
    );
    process.kill(Number(await readFile(pidFile, "utf8")));
    expect(verdict).toMatchObject({ works: false, why: expect.stringContaining("not finished") });
  });

  it("says so where there is no QEMU", async () => {
    const arch = { ...vmArch("x64"), qemuProgram: join(dir, "none") };
    expect(await bootOnce(arch, kernel, "kvm", 20_000)).toMatchObject({
      works: false,
      why: expect.stringContaining("no such program"),
    });
  });
});

describe("probeKvm", () => {
  it("remembers its answer for this boot, kernel and QEMU only", async () => {
    const arch = await qemu("echo CLOCHE-GUEST-RUNS");
    const first = await probeKvm(dir, arch, kernel, "7.2", "/dev/null");
    expect(first).toEqual({ works: true });
    expect(await probeKvm(dir, arch, kernel, "7.2", "/dev/null")).toEqual(first);
    expect(await runs()).toBe(1);
    await probeKvm(dir, arch, kernel, "9.2", "/dev/null");
    await probeKvm(dir, arch, { ...kernel, key: "kernel-2" }, "9.2", "/dev/null");
    expect(await runs()).toBe(3);
  });

  it("tries nothing without the device", async () => {
    const arch = await qemu("echo CLOCHE-GUEST-RUNS");
    const verdict = await probeKvm(dir, arch, kernel, "7.2", join(dir, "no-kvm"));
    expect(verdict).toMatchObject({ works: false, why: expect.stringContaining("has no") });
    expect(await runs()).toBe(0);
  });

  it("tries anew where its memory cannot be read", async () => {
    const arch = await qemu("echo CLOCHE-GUEST-RUNS");
    await writeFile(join(dir, "kvm-probe.json"), "{");
    expect(await probeKvm(dir, arch, kernel, "7.2", "/dev/null")).toEqual({ works: true });
  });
});
