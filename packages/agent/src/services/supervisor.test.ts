import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ClocheError, type ServiceDefinition, type ServiceRecord } from "@cloche/protocol";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ProcessTable } from "../processes/index.ts";
import { LocalGuest } from "../testing/local-spawner.ts";
import { Catalog } from "./catalog.ts";
import { LaunchError, type Launcher, plainLauncher } from "./launcher.ts";
import { Supervisor } from "./supervisor.ts";

const processTable = () => new ProcessTable({ randomBytes, nowMs: Date.now, onActivity: () => undefined });
const quiet = { info: () => undefined, warn: () => undefined, error: () => undefined };
let folder: string;
let guest: LocalGuest;
const open: Supervisor[] = [];

function supervise(
  changes: {
    launcher?: Launcher;
    startTimeoutMs?: number;
    stopTimeoutMs?: number;
    startedTogetherMs?: number;
  } = {},
  disk: string = folder,
): Supervisor {
  const supervisor = new Supervisor({
    catalog: new Catalog(join(disk, "services"), quiet),
    launcher: plainLauncher(
      () => guest,
      () => ({ FROM_SANDBOX: "yes" }),
      processTable(),
    ),
    onOutput: () => undefined,
    ...changes,
  });
  supervisor.load();
  open.push(supervisor);
  return supervisor;
}

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-services-"));
  guest = new LocalGuest(folder);
});
afterEach(async () => {
  for (const supervisor of open.splice(0)) {
    await supervisor.halt();
    await supervisor.unload();
  }
  expect(guest.runningCount).toBe(0);
  rmSync(folder, { recursive: true, force: true });
});

const shell = (script: string, more: Partial<ServiceDefinition> = {}): ServiceDefinition => ({
  cmd: "/bin/sh",
  args: ["-c", script],
  ...more,
});
const until = async (
  supervisor: Supervisor,
  name: string,
  seen: (record: ServiceRecord) => boolean,
): Promise<ServiceRecord> => {
  for (;;) {
    const record = supervisor.get(name).record();
    if (seen(record)) return record;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};
const logText = async (supervisor: Supervisor, name: string): Promise<string> => {
  const { log } = supervisor.get(name);
  let text = "";
  for await (const block of log.read(log.start, false, new AbortController().signal))
    text += block.toString();
  return text;
};
async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

describe("Supervisor", () => {
  it("tells the truth about a service through its life", async () => {
    const supervisor = supervise();
    const stopped = {
      name: "a",
      cmd: "/bin/sh",
      status: "stopped",
      pid: 0,
      container: false,
      exit_code: null,
      restarts: 0,
      error: "",
      phase: "",
    };
    expect(
      await supervisor.put(
        "a",
        shell("echo hello from $FROM_SANDBOX $OWN; sleep 1000", { env: { OWN: "env" } }),
      ),
    ).toEqual(stopped);
    const started = await supervisor.start("a");
    expect(started).toMatchObject({ status: "running", exit_code: null });
    expect(started.pid).toBeGreaterThan(0);
    expect(await supervisor.start("a")).toEqual(started);
    while (!(await logText(supervisor, "a")).includes("hello from yes env\n"))
      await new Promise((resolve) => setTimeout(resolve, 5));
    expect(supervisor.running()).toEqual(["a"]);
    expect(await supervisor.stop("a")).toMatchObject({
      status: "stopped",
      pid: 0,
      exit_code: 143,
      error: "",
    });
    expect(await supervisor.stop("a")).toMatchObject({ status: "stopped" });
    await supervisor.delete("a");
    expect(() => supervisor.get("a")).toThrow(expect.objectContaining({ code: "not_found" }));
    await expect(supervisor.delete("a")).rejects.toMatchObject({ code: "not_found" });
  });

  it.each([
    ["exit 0", "stopped", 0, ""],
    ["exit 3", "failed", 3, "exited with code 3"],
    ["kill -9 $$", "failed", 137, "was ended by signal 9"],
  ])("says how %s ended", async (script, status, exitCode, error) => {
    const supervisor = supervise();
    await supervisor.put("a", shell(script));
    await supervisor.start("a");
    expect(
      await until(supervisor, "a", ({ phase, status: now }) => phase === "" && now !== "running"),
    ).toMatchObject({ status, exit_code: exitCode, error, pid: 0 });
  });

  it("tells how far a pull is, only while it goes on", async () => {
    const { promise: release, resolve } = Promise.withResolvers<void>();
    const plain = plainLauncher(
      () => guest,
      () => ({}),
      processTable(),
    );
    const pull = { layers_done: 1, layers_total: 2, bytes_done: 10, bytes_total: 30 };
    const launcher: Launcher = {
      ...plain,
      launch: async (request) => {
        request.onPhase("pulling");
        request.onPull({ stage: "fetching", ...pull });
        await release;
        request.onPhase("starting");
        request.onPull({ stage: "unpacking", ...pull }); // too late to be true
        return plain.launch(request);
      },
    };
    const supervisor = supervise({ launcher });
    expect(await supervisor.put("a", shell("sleep 1000"))).not.toHaveProperty("pull");
    const started = supervisor.start("a");
    const pulling = await until(supervisor, "a", ({ phase }) => phase === "pulling");
    expect(pulling).toMatchObject({ status: "unknown", pull: { stage: "fetching", ...pull } });
    expect(supervisor.list()).toEqual([pulling]);
    resolve();
    expect(await started).not.toHaveProperty("pull");
    expect(supervisor.get("a").record()).not.toHaveProperty("pull");
  });

  it("fails a service whose program is not there, and says so", async () => {
    const supervisor = supervise();
    await supervisor.put("a", { cmd: "/no/such/program" });
    expect(await supervisor.start("a")).toMatchObject({
      status: "failed",
      exit_code: 127,
      error: expect.stringContaining("/no/such/program"),
    });
    expect(await logText(supervisor, "a")).toContain("was not found");
  });

  it("counts a service as running when its port accepts, and shows it as starting before", async () => {
    const port = await freePort();
    const supervisor = supervise();
    const listener = `setTimeout(()=>require("net").createServer().listen(${port},"127.0.0.1"),150)`;
    await supervisor.put("a", { cmd: process.execPath, args: ["-e", listener], health_port: port });
    const start = supervisor.start("a");
    expect(supervisor.get("a").record()).toMatchObject({ status: "unknown", phase: "starting" });
    expect(await start).toMatchObject({ status: "running", phase: "" });
  });

  it("does not take another's server for the service's own", async () => {
    const other = createServer().listen(0, "127.0.0.1");
    await once(other, "listening");
    const { port } = other.address() as AddressInfo;
    const supervisor = supervise({ startTimeoutMs: 300 });
    await supervisor.put("a", shell("sleep 1000", { health_port: port }));
    expect(await supervisor.start("a")).toMatchObject({
      status: "failed",
      error: expect.stringContaining("another process listens there"),
    });
    other.close();
  });

  it("does not call running what has closed its port, in whichever family that was", async () => {
    const port = await freePort();
    const supervisor = supervise();
    const listener = `s=require("net").createServer().listen(${port},"::1");process.on("SIGUSR1",()=>s.close(()=>setTimeout(()=>0,1e6)))`;
    const listening: ServiceDefinition = { cmd: process.execPath, args: ["-e", listener], health_port: port };
    await supervisor.put("a", listening);
    const { status, pid } = await supervisor.start("a");
    expect(status).toBe("running");
    // The port of the run that is there, not that of a definition for later.
    await supervisor.put("a", { ...listening, health_port: await freePort() });
    expect(supervisor.get("a").record()).toMatchObject({ status: "running", error: "" });
    process.kill(pid, "SIGUSR1");
    const lost = await until(supervisor, "a", (record) => record.status !== "running");
    expect(lost).toMatchObject({ status: "unknown", pid, error: expect.stringContaining(`port ${port}`) });
  });

  it("reports as started by a restore only what still runs a moment later", async () => {
    const port = await freePort();
    const before = supervise();
    const listener = `s=require("net").createServer().listen(${port},"127.0.0.1",()=>setTimeout(()=>s.close(()=>setTimeout(()=>0,1e6)),150))`;
    await before.put("stays", shell("sleep 1000"));
    await before.put("falls", shell("sleep 0.1; exit 3"));
    await before.put("leaves", shell("sleep 0.1"));
    await before.put("closes", { cmd: process.execPath, args: ["-e", listener], health_port: port });
    expect(await before.startAll(["stays", "falls", "leaves", "closes"])).toEqual({
      started: ["stays"],
      failed: ["closes", "falls", "leaves"],
    });
  });

  it("fails a service whose port never accepts, or that exits before it does", async () => {
    const port = await freePort();
    const supervisor = supervise({ startTimeoutMs: 200 });
    await supervisor.put("slow", shell("sleep 1000", { health_port: port }));
    await supervisor.put("gone", shell("exit 0", { health_port: port }));
    expect(await supervisor.start("slow")).toMatchObject({
      status: "failed",
      error: expect.stringContaining(`port ${port} did not accept`),
    });
    expect(await supervisor.start("gone")).toMatchObject({
      status: "failed",
      error: expect.stringContaining("before port"),
    });
    expect(guest.runningCount).toBe(0);
  });

  it("gives a service the time to start that its definition says", async () => {
    const port = await freePort();
    const supervisor = supervise({ startTimeoutMs: 100 });
    const listen = `setTimeout(() => require("net").createServer().listen(${port}, "127.0.0.1"), 400)`;
    const slow = { cmd: process.execPath, args: ["-e", listen], health_port: port };
    await supervisor.put("slow", slow);
    expect(await supervisor.start("slow")).toMatchObject({
      status: "failed",
      error: `port ${port} did not accept connections within 0.1 s`,
    });
    await supervisor.put("slow", { ...slow, start_timeout_secs: 30 });
    expect(await supervisor.start("slow")).toMatchObject({ status: "running" });
  });

  it("lets a service that is given up end by itself, within its time", async () => {
    const port = await freePort();
    const supervisor = supervise({ startTimeoutMs: 300, stopTimeoutMs: 5_000 });
    const careful = "trap 'echo put away; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    await supervisor.put("careful", shell(careful, { health_port: port }));
    expect(await supervisor.start("careful")).toMatchObject({ status: "failed", exit_code: 3 });
    expect(await logText(supervisor, "careful")).toContain("put away\n");
  });

  it("stops a service with its own signal, which goes to the program alone, and within its own time", async () => {
    const supervisor = supervise();
    const script =
      "trap 'echo got INT; exit 0' INT; (trap 'echo child got INT' INT; while :; do sleep 0.05; done) & " +
      "echo up; while :; do sleep 0.05; done";
    await supervisor.put("own", shell(script, { stop_signal: "SIGINT" }));
    await supervisor.put("short", shell("trap '' TERM; echo up; sleep 1000", { stop_timeout_secs: 0 }));
    for (const name of ["own", "short"]) {
      await supervisor.start(name);
      while (!(await logText(supervisor, name)).includes("up\n"))
        await new Promise((resolve) => setTimeout(resolve, 5));
    }
    expect(await supervisor.stop("short")).toMatchObject({ exit_code: 137 });
    // A change of the definition counts from the next start.
    await supervisor.put("own", shell(script, { stop_signal: "SIGKILL" }));
    const stopping = supervisor.stop("own");
    const own = async (): Promise<string> => await logText(supervisor, "own");
    while (!(await own()).includes("got INT\n")) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(await own()).not.toContain("child got INT");
    await supervisor.get("own").halt("kill"); // the child, which nobody told
    expect(await stopping).toMatchObject({ status: "stopped", exit_code: 0 });
  });

  it("answers a restore before a slow service is up, which goes on starting", async () => {
    const before = supervise();
    const port = await freePort();
    const listen = `setTimeout(() => require("net").createServer().listen(${port}, "127.0.0.1"), 700)`;
    await before.put("slow", { cmd: process.execPath, args: ["-e", listen], health_port: port });
    await before.put("web", shell("sleep 1000", { needs: ["slow"] }));
    const supervisor = supervise({ startedTogetherMs: 100 });
    expect(await supervisor.startAll(["web", "slow"])).toEqual({ started: [], failed: ["slow", "web"] });
    expect(supervisor.get("web").record()).toMatchObject({ status: "unknown", phase: "starting" });
    await until(supervisor, "web", ({ status }) => status === "running");
  });

  it("kills what ignores SIGTERM, and what a program leaves behind", async () => {
    const supervisor = supervise({ stopTimeoutMs: 100 });
    await supervisor.put("deaf", shell("trap '' TERM; echo deaf; while :; do sleep 0.05; done"));
    await supervisor.start("deaf");
    while (!(await logText(supervisor, "deaf")).includes("deaf\n"))
      await new Promise((resolve) => setTimeout(resolve, 5));
    expect(await supervisor.stop("deaf")).toMatchObject({ status: "stopped", exit_code: 137 });
    await supervisor.put("leaver", shell("sleep 1000 >/dev/null 2>&1 & echo $! >&2; exit 0"));
    await supervisor.start("leaver");
    await until(supervisor, "leaver", ({ status }) => status === "stopped");
    const [child] = /^\d+$/m.exec(await logText(supervisor, "leaver")) ?? [];
    // Gone, or a zombie that nobody reaps on this machine.
    const state = (): string => {
      try {
        return /^State:\t(.)/m.exec(readFileSync(`/proc/${child}/status`, "utf8"))?.[1] ?? "";
      } catch {
        return "gone";
      }
    };
    while (!["gone", "Z"].includes(state())) await new Promise((resolve) => setTimeout(resolve, 5));
  });

  it("starts needs first, side by side, and refuses when one fails", async () => {
    const supervisor = supervise();
    await supervisor.put("db", shell("sleep 1000"));
    await supervisor.put("cache", shell("sleep 1000"));
    await supervisor.put("web", shell("sleep 1000", { needs: ["db", "cache"] }));
    expect((await supervisor.start("web")).status).toBe("running");
    expect(supervisor.running()).toEqual(["cache", "db", "web"]);
    await supervisor.stop("db");
    expect(supervisor.running()).toEqual(["cache", "web"]);

    await supervisor.put("bad", { cmd: "/no/such/program" });
    await supervisor.put("top", shell("sleep 1000", { needs: ["mid"] }));
    await supervisor.put("mid", shell("sleep 1000", { needs: ["bad"] }));
    await expect(supervisor.start("top")).rejects.toMatchObject({
      code: "failed_precondition",
      message: expect.stringContaining('"bad"'),
    });
    expect(supervisor.get("top").record()).toMatchObject({ status: "stopped", phase: "" });
    expect(supervisor.get("bad").record()).toMatchObject({ status: "failed" });
    await supervisor.put("lost", shell("sleep 1000", { needs: ["nobody"] }));
    await expect(supervisor.start("lost")).rejects.toMatchObject({
      code: "failed_precondition",
      message: expect.stringContaining('"nobody"'),
    });
  });

  it("stops a service that still waits for its needs, or still starts", async () => {
    const port = await freePort();
    const supervisor = supervise();
    await supervisor.put("slow", shell("sleep 1000", { health_port: port }));
    await supervisor.put("web", shell("sleep 1000", { needs: ["slow"] }));
    const start = supervisor.start("web");
    const outcome = start.catch((error: unknown) => error);
    expect(supervisor.get("web").record()).toMatchObject({ status: "unknown", phase: "starting" });
    await supervisor.stop("web");
    await supervisor.stop("slow");
    expect(await outcome).toBeInstanceOf(ClocheError);
    for (const name of ["web", "slow"])
      expect(supervisor.get(name).record()).toMatchObject({ status: "stopped", phase: "", pid: 0 });
  });

  it("restarts by policy, backs off, and gives up when stopped", async () => {
    const supervisor = supervise({ startTimeoutMs: 400 });
    await supervisor.put("flaky", shell("exit 1", { restart: "on-failure" }));
    await supervisor.put("done", shell("exit 0", { restart: "on-failure" }));
    await supervisor.put("again", shell("exit 0", { restart: "always" }));
    await Promise.all(["flaky", "done", "again"].map((name) => supervisor.start(name)));
    await until(supervisor, "flaky", ({ restarts }) => restarts >= 2);
    await until(supervisor, "again", ({ restarts }) => restarts >= 2);
    expect(await until(supervisor, "flaky", ({ phase }) => phase === "backoff")).toMatchObject({
      status: "unknown",
      error: "exited with code 1",
    });
    expect(supervisor.get("done").record()).toMatchObject({ status: "stopped", restarts: 0 });
    expect(await supervisor.stop("flaky")).toMatchObject({ status: "stopped", phase: "" });
    await supervisor.stop("again");
  });

  it("answers a start that keeps failing after its patience", async () => {
    const supervisor = supervise({ startTimeoutMs: 100 });
    await supervisor.put("never", { cmd: "/no/such/program", restart: "always" });
    expect(["backoff", "starting"]).toContain((await supervisor.start("never")).phase);
    await supervisor.put("needs-it", shell("true", { needs: ["never"] }));
    await expect(supervisor.start("needs-it")).rejects.toMatchObject({
      message: expect.stringContaining('"never"'),
    });
  });

  it("keeps a running service as it is when its definition changes", async () => {
    const supervisor = supervise();
    await supervisor.put("a", shell("sleep 1000"));
    const { pid } = await supervisor.start("a");
    expect(await supervisor.put("a", { cmd: "/bin/true" })).toMatchObject({
      status: "running",
      pid,
      cmd: "/bin/true",
    });
    await supervisor.stop("a");
    await supervisor.start("a");
    expect(await until(supervisor, "a", ({ status }) => status === "stopped")).toMatchObject({
      exit_code: 0,
    });
  });

  it("finds its services on the disk again, unknown until they are started or given up", async () => {
    const first = supervise();
    await first.put("web", shell("sleep 1000", { needs: ["db"], registry_password: "secret" }));
    await first.put("db", shell("sleep 1000"));
    await first.put("idle", shell("exit 4"));
    await first.start("web");
    await first.start("idle");
    await until(first, "idle", ({ status }) => status === "failed");
    await first.flush();
    expect(JSON.stringify(first.list())).not.toContain("secret");
    expect(await first.halt()).toEqual(["db", "web"]);
    await first.unload();

    const second = supervise();
    expect(second.list().map(({ name, status, exit_code }) => [name, status, exit_code])).toEqual([
      ["db", "unknown", null],
      ["idle", "failed", 4],
      ["web", "unknown", null],
    ]);
    expect(second.wanted()).toEqual(["db", "web"]);
    expect(await second.startAll(["web", "db", "ghost"])).toEqual({
      started: ["db", "web"],
      failed: ["ghost"],
    });
    await second.halt();
    await second.unload();

    const third = supervise();
    expect(await third.startAll([])).toEqual({ started: [], failed: [] });
    expect(third.list().map(({ status }) => status)).toEqual(["stopped", "failed", "stopped"]);
    expect(readFileSync(join(folder, "services/web/service.json"), "utf8")).toContain("secret");
  });

  it("shuts down dependents before what they need", async () => {
    const supervisor = supervise();
    const order = join(folder, "order");
    const noting = (name: string, needs: string[]): ServiceDefinition =>
      shell(`trap 'echo ${name} >> ${order}; exit 0' TERM; echo up; while :; do sleep 0.02; done`, { needs });
    await supervisor.put("db", noting("db", []));
    await supervisor.put("app", noting("app", ["db"]));
    await supervisor.put("web", noting("web", ["app", "db"]));
    await supervisor.start("web");
    for (const name of ["db", "app", "web"])
      while (!(await logText(supervisor, name)).includes("up\n"))
        await new Promise((resolve) => setTimeout(resolve, 5));
    await supervisor.shutDown();
    expect(readFileSync(order, "utf8")).toBe("web\napp\ndb\n");
    expect(supervisor.wanted()).toEqual(["db", "app", "web"]);
  });

  it("agrees with a simple model for random graphs, starts and stops", async () => {
    const names = ["a", "b", "c", "d", "e"];
    const graphs = fc.tuple(
      fc.record(
        Object.fromEntries(
          names.map((name) => [
            name,
            fc.record({
              needs: fc.subarray([...names, "ghost"], { maxLength: 3 }),
              bad: fc.integer({ min: 0, max: 5 }).map((n) => n === 0),
            }),
          ]),
        ),
      ),
      fc.array(fc.tuple(fc.constantFrom("start", "start", "stop"), fc.constantFrom(...names)), {
        maxLength: 12,
      }),
    );
    await fc.assert(
      fc.asyncProperty(graphs, async ([graph, steps]) => {
        const own = mkdtempSync(join(folder, "run-"));
        const running = new Set<string>();
        const launches: string[] = [];
        const supervisor = supervise(
          {
            launcher: modelLauncher((name) => {
              launches.push(name);
              for (const need of graph[name]?.needs ?? [])
                if (need !== name) expect(running.has(need) || supervisor.get(need).running).toBe(true);
              return graph[name]?.bad === true;
            }),
          },
          own,
        );
        for (const name of names) await supervisor.put(name, { cmd: "x", needs: graph[name]?.needs ?? [] });
        // The model: a start tries every need, and goes on where all came up.
        const simulate = (name: string): "ok" | "refused" | "failed" => {
          if (running.has(name)) return "ok";
          const outcomes = (graph[name]?.needs ?? []).map(simulate);
          if (outcomes.some((one) => one !== "ok")) return "refused";
          if (graph[name]?.bad === true) return "failed";
          running.add(name);
          return "ok";
        };
        const sound = (name: string, path: string[]): boolean =>
          (graph[name]?.needs ?? []).every(
            (need) => graph[need] !== undefined && !path.includes(need) && sound(need, [...path, need]),
          );
        for (const [verb, name] of steps) {
          if (verb === "stop") {
            running.delete(name);
            await supervisor.stop(name);
          } else {
            const before = launches.length;
            const outcome = await supervisor.start(name).then(
              ({ status }) => (status === "running" ? "ok" : "failed"),
              () => "refused",
            );
            // A graph that is not sound is refused before anything of it starts.
            const expected = running.has(name) ? "ok" : sound(name, [name]) ? simulate(name) : "refused";
            expect(outcome).toBe(expected);
            expect(new Set(launches.slice(before)).size).toBe(launches.length - before);
          }
          expect(supervisor.running().sort()).toEqual([...running].sort());
        }
        await supervisor.halt();
      }),
      { numRuns: 150 },
    );
  }, 60_000);
});

/** Programs that are not: they run until they are killed, or fail to start. */
function modelLauncher(isBad: (name: string) => boolean): Launcher {
  return {
    remove: async () => undefined,
    tidy: async () => undefined,
    launch: async ({ name }) => {
      await new Promise((resolve) => setImmediate(resolve));
      if (isBad(name)) throw new LaunchError("it is bad", 1);
      const { promise, resolve } = Promise.withResolvers<{ code: number; signal: number | null }>();
      const end = (): void => resolve({ code: 143, signal: 15 });
      const process = {
        pid: 1,
        outOfMemory: false,
        exited: promise,
        ended: promise.then(() => undefined),
        write: async () => undefined,
        end: () => undefined,
        signal: end,
        kill: async () => end(),
        resize: () => undefined,
        tree: () => [],
        findPid: async () => 1,
      };
      return { process, container: undefined, release: async () => undefined };
    },
  };
}
