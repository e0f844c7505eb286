/**
 * Detection of ended and hanging machines when QEMU misbehaves: it keeps its connection, or does not resume.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from "vitest";
import { answered, type Answering, fakeQemu, refused } from "../../testing/fake-qemu.ts";
import { Cgroup } from "../cgroup.ts";
import { identify } from "../process-identity.ts";
import { diskOf, guestDiskDevice, vmFiles } from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";
import { Vm } from "./vm.ts";
import { hostBootId, saveVmRecord, vmDirectory } from "./vm-record.ts";

let dir: string;
let qemu: ChildProcess;
let close: () => void = () => undefined;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "vm-test-"));
  await mkdir(vmDirectory(dir));
  qemu = spawn("sleep", ["600"]);
});
afterEach(async () => {
  qemu.kill("SIGKILL");
  close();
  await rm(dir, { recursive: true, force: true });
});

const disk = { qdev: guestDiskDevice, inserted: { file: `/vm/${diskOf(1).file}` } };
const answers: Readonly<Record<string, unknown>> = {
  "query-status": { status: "paused" },
  "query-block": [disk],
  "query-named-block-nodes": [],
  "query-blockstats": [{ qdev: `/machine/peripheral/${guestDiskDevice}/virtio-backend`, stats: {} }],
};
const obedient: Answering = (command) => answered(command, answers[command.execute] ?? {});

/** Adopts a machine that an earlier service left paused. */
async function adopted(answer: Answering): Promise<Vm> {
  close = await fakeQemu(join(vmDirectory(dir), vmFiles.socket), answer);
  const process = await identify(qemu.pid ?? 0);
  await saveVmRecord(dir, {
    id: "sbx-a",
    shape: { vcpus: 1, memoryMb: 256 },
    cpus: 1,
    uid: 1,
    agentPort: 61_070,
    bootedFrom: { kernel: "", firstRoot: "", systemImage: "" },
    slot: 1,
    bootId: await hostBootId(),
    ...(process && { process }),
    disks: 1,
  });
  const network = { adopt: async () => ({ agentHost: "127.0.0.1" }) };
  const environment = { tag: "t", network, log: silentLog } as unknown as VmEnvironment;
  const vm = await Vm.adopt(environment, { id: "sbx-a", dir, diskImage: "" });
  if (!vm) throw new Error("not adopted");
  return vm;
}

it("stands still on our behalf until it goes on", async () => {
  const vm = await adopted(obedient);
  expect(vm.standsStill).toBe(true);
  await vm.resume();
  expect(vm.standsStill).toBe(false);
});

it("has a bounded log, whatever its guest makes QEMU write", async () => {
  const vm = await adopted(obedient);
  const log = join(vmDirectory(dir), vmFiles.log);
  await writeFile(log, Buffer.alloc(2 * 1024 * 1024));
  await vm.healthy(100);
  expect((await stat(log)).size).toBe(0);
});

it("that does not go on is one that hangs", async () => {
  const vm = await adopted((command, socket) =>
    command.execute === "cont" ? refused(command, "no") : obedient(command, socket),
  );
  await expect(vm.resume()).rejects.toThrow("cont: no");
  expect(vm.standsStill).toBe(false);
});

it("whose disk could not be written is noticed by QEMU's event, and tells why it was ended", async () => {
  const event = (operation: string): string => {
    const data = {
      device: "",
      operation,
      action: "report",
      nospace: true,
      reason: "No space left on device",
    };
    return `${JSON.stringify({ event: "BLOCK_IO_ERROR", data })}\r\n`;
  };
  let operation = "read";
  const vm = await adopted((command, socket) =>
    command.execute === "cont" ? event(operation) + answered(command, {}) : obedient(command, socket),
  );
  await vm.resume();
  expect(vm.diskFailed).toBe(false);
  operation = "write";
  await vm.resume();
  expect(vm.diskFailed).toBe(true);
  await vm.endForDisk();
  expect(await vm.ended).toBe("its disk took no more writes, because the host's disk was full or failed");
});

it("whose disk could not be written while no service listened is noticed by the next", async () => {
  const stats = (writes: number) => [
    { qdev: "/machine/peripheral/vda/virtio-backend", stats: { failed_wr_operations: 1 } },
    {
      qdev: `/machine/peripheral/${guestDiskDevice}/virtio-backend`,
      stats: { failed_wr_operations: writes },
    },
  ];
  let writes = 0;
  const answer: Answering = (command, socket) =>
    command.execute === "query-blockstats" ? answered(command, stats(writes)) : obedient(command, socket);
  expect((await adopted(answer)).diskFailed).toBe(false);
  close();
  await rm(join(vmDirectory(dir), vmFiles.socket), { force: true });
  writes = 3;
  expect((await adopted(answer)).diskFailed).toBe(true);
});

it("whose kernel panicked and whose process does not end is reported, and ends nothing else", async () => {
  onTestFinished(() => void vi.restoreAllMocks());
  const vm = await adopted((command, socket) =>
    command.execute === "cont"
      ? `${JSON.stringify({ event: "GUEST_PANICKED", data: {} })}\r\n${answered(command, {})}`
      : obedient(command, socket),
  );
  vi.spyOn(process, "kill").mockReturnValue(true);
  vi.spyOn(Cgroup.prototype, "kill").mockRejectedValue(new Error("does not end"));
  const reported = Promise.withResolvers<unknown>();
  vi.spyOn(silentLog, "error").mockImplementation((...args: unknown[]) => reported.resolve(args));
  await vm.resume();
  expect(await reported.promise).toMatchObject([{ sandbox_id: "sbx-a" }, "cannot end a machine's process"]);
});

it("that was ended because it hangs tells of its end, though its connection stays", async () => {
  const vm = await adopted(obedient);
  await vm.endAsHung();
  expect(await vm.ended).toBe("the machine stopped answering");
});
