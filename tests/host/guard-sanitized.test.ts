// The guard compiled with the sanitizers: everything that it is asked, and bytes that nobody should send it. It freezes and thaws real
// cgroups, and a memory error or undefined behaviour ends it, which its log tells.
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { bootMs } from "../../packages/host/src/lease/boot-clock.ts";
import { Cgroup, cgroupVersion, removeGroup } from "../../packages/host/src/drivers/cgroup.ts";
import { plan } from "../fuzz/seed.ts";
import { cannotRun, inHome, type Lab, openLab } from "./lab.ts";

const SOURCES = new URL("../../native/guard/", import.meta.url).pathname;
const SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
const TREE = join("/sys/fs/cgroup", cgroupVersion() === 2 ? "" : "freezer");
const MACHINES = ["a", "b", "c"];

let lab: Lab;
let program: string;
const directory = (): string => inHome(lab, "guard");
const log = (): string => readFileSync(inHome(lab, "guard.log"), "utf8");

function start(): void {
  mkdirSync(directory(), { recursive: true });
  const words = [program, directory(), "/sys/fs/cgroup", lab.tag].map((word) => `'${word}'`).join(" ");
  // It goes into the background with its standard error, where the sanitizers speak.
  const { status } = spawnSync("sh", ["-c", `exec ${words} 2>>'${inHome(lab, "guard.log")}'`], {
    stdio: "ignore",
    env: { ASAN_OPTIONS: "detect_leaks=0" },
  });
  expect([status, log()]).toEqual([0, ""]);
}

class Caller {
  readonly socket: Socket = connect(join(directory(), "socket"));
  readonly #reader = createInterface({ input: this.socket });
  readonly #lines = this.#reader[Symbol.asyncIterator]();

  constructor() {
    this.socket.on("error", () => undefined);
    this.socket.once("close", () => this.#reader.close());
  }

  /** Machines and those of them that are frozen. */
  async ask(line: string): Promise<{ machines: number; frozen: number }> {
    this.socket.write(`${line}\n`);
    const { value } = await this.#lines.next();
    const [, , , machines = -1, frozen = -1] = String(value).split(" ").map(Number);
    return { machines, frozen };
  }
}

async function asked(line: string) {
  const caller = new Caller();
  const answer = await caller.ask(line);
  caller.socket.destroy();
  return answer;
}

describe.skipIf(cannotRun)("the guard under the sanitizers", () => {
  beforeAll(async () => {
    lab = await openLab();
    program = inHome(lab, "guard-sanitized");
    const sources = readdirSync(SOURCES).filter((name) => name.endsWith(".c"));
    const flags = ["-std=gnu17", "-g", "-O1", "-Wall", "-Wextra", "-Werror", ...SANITIZERS];
    execFileSync("gcc", [...flags, "-o", program, ...sources.map((name) => join(SOURCES, name))]);
    for (const name of MACHINES)
      mkdirSync(join(TREE, `cloche-${lab.tag}/${name}/sentry`), { recursive: true });
    mkdirSync(join(TREE, `cloche-${lab.tag}-vm/v`), { recursive: true });
    writeFileSync(inHome(lab, "guard.log"), "");
  });
  afterAll(async () => {
    if (lab === undefined) return;
    for (const name of MACHINES) await new Cgroup(`/cloche-${lab.tag}/${name}`).destroy();
    await new Cgroup(`/cloche-${lab.tag}-vm/v`).destroy();
    for (const parent of ["", "-vm"]) await removeGroup(`/cloche-${lab.tag}${parent}`);
    rmSync(program);
    await lab.close();
  });

  it("has no memory error in what a host asks of it", async () => {
    start();
    expect(await asked("status")).toEqual({ machines: 4, frozen: 4 });
    expect(await asked(`until ${bootMs() + 60_000}`)).toEqual({ machines: 4, frozen: 0 });
    // The deadline passes by itself, and a second start finds the first.
    await asked(`until ${bootMs() + 200}`);
    await expect.poll(() => asked("status")).toEqual({ machines: 4, frozen: 4 });
    start();
    expect(await asked("until 0")).toEqual({ machines: 4, frozen: 4 });
    const pid = Number(readFileSync(join(directory(), "pid"), "utf8"));
    process.kill(pid, "SIGKILL");
    start();
    expect(await asked(`until ${bootMs() + 60_000}`)).toEqual({ machines: 4, frozen: 0 });
  });

  it("outlives bytes that no host sends, and more callers than it has places", async () => {
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 200 }).map((data) => Buffer.from(data)),
      fc.string({ maxLength: 80 }).map((text) => Buffer.from(`until ${text}\n`)),
      fc.bigInt().map((number) => Buffer.from(`until ${number}\n`)),
      fc
        .constantFrom("\n", "\0\n", "until\n", "until -1\n", "status\nstatus\nsta")
        .map((text) => Buffer.from(text)),
    );
    const callers = fc.array(fc.array(bytes, { maxLength: 4 }), { maxLength: 12 });
    await fc.assert(
      fc.asyncProperty(callers, async (all) => {
        const open = all.map((pieces) => {
          const { socket } = new Caller();
          for (const piece of pieces) socket.write(piece);
          return socket;
        });
        for (const socket of open) socket.destroySoon();
        await expect.poll(() => asked("status")).toMatchObject({ machines: 4 });
      }),
      plan(60),
    );
    expect(log().replaceAll(/^(until|new): .*$/gm, "")).toBe("");
  });

  it("ends without an error", async () => {
    const { socket } = new Caller();
    const closed = new Promise((resolve) => socket.once("close", resolve));
    socket.resume();
    socket.write("end\n");
    await closed;
    expect(readdirSync(directory())).toEqual(["lock"]);
    expect(log()).toBe("");
  });
});
