import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  type Guest,
  NativeSpawner,
  SpawnError,
  type SpawnRequest,
} from "../../packages/agent/src/spawner/index.ts";
import { guestBinary, guestOptions, isRoot, makeDisk, until } from "./guest-fixture.ts";

const env = { PATH: "/bin:/usr/bin" };

async function run(guest: Guest, request: Partial<SpawnRequest> & { argv: string[] }): Promise<string> {
  let text = "";
  const running = guest.launch({
    env,
    onOutput: (_stream, chunk) => void (text += chunk.toString()),
    ...request,
  });
  await running.exited;
  return text;
}

const sh = (script: string): string[] => ["sh", "-c", script];
/** Processes of this machine whose root or arguments mention `marker`. */
function onMachine(marker: string): string[] {
  return readdirSync("/proc").filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(marker);
    } catch {
      return false;
    }
  });
}

/** Pids of the children of `parent` with this name. */
function childrenOf(parent: number, name: string): number[] {
  return readdirSync("/proc")
    .filter((pid) => /^\d+$/.test(pid))
    .filter((pid) => {
      try {
        const status = readFileSync(`/proc/${pid}/status`, "utf8");
        return status.startsWith(`Name:\t${name}\n`) && status.includes(`\nPPid:\t${parent}\n`);
      } catch {
        return false; // it has ended
      }
    })
    .map(Number);
}

/** Of the file servers that this process started; other tests have theirs. */
function fileServerThreads(): number {
  return childrenOf(process.pid, "cloche-files").reduce(
    (sum, pid) => sum + readdirSync(`/proc/${pid}/task`).length,
    0,
  );
}

describe.skipIf(!isRoot)("the native spawner", () => {
  let spawner: NativeSpawner;
  let disk: string;
  beforeAll(async () => {
    if (!isRoot) return;
    disk = makeDisk();
    spawner = new NativeSpawner(await guestBinary(), guestOptions);
    await spawner.attach(disk);
  });
  afterAll(async () => {
    await spawner?.detach();
    if (disk) rmSync(disk, { recursive: true, force: true });
  });

  it("tells the pid that users see, and signals the program or its tree", async () => {
    let out = "";
    const script = "trap 'echo got it; exit 5' TERM; echo $$; sleep 3001 & wait; wait";
    const process = await spawner.guest.spawn({
      argv: sh(script),
      env,
      onOutput: (_s, chunk) => void (out += chunk.toString()),
    });
    await until("it says its pid", () => out.includes("\n"));
    expect(out.trim()).toBe(String(process.pid));
    process.signal(15, "program");
    expect(await process.exited).toEqual({ code: 5, signal: null });
    expect(out).toContain("got it");
    expect(await run(spawner.guest, { argv: ["pgrep", "-f", "sleep 3001"] })).not.toBe("");
    await run(spawner.guest, { argv: ["pkill", "-f", "sleep 3001"] });
  });

  it("holds a tree that outlives its program until it is killed", async () => {
    let out = "";
    const process = await spawner.guest.spawn({
      argv: sh("(setsid sh -c 'sleep 0.2; echo later; sleep 3002') & exit 3"),
      env,
      tree: "hold",
      onOutput: (_s, chunk) => void (out += chunk.toString()),
    });
    expect(await process.exited).toEqual({ code: 3, signal: null });
    await until("output after the exit", () => out.includes("later"));
    let ended = false;
    void process.ended.then(() => (ended = true));
    await sleep(50);
    expect(ended).toBe(false);
    process.signal(15, "tree");
    await process.ended;
    expect(await run(spawner.guest, { argv: ["pgrep", "-f", "sleep 3002"] })).toBe("");
    const empty = await spawner.guest.spawn({ argv: ["true"], env, tree: "hold" });
    await empty.ended;
  });

  it("rejects with the stage that failed", async () => {
    await expect(spawner.guest.spawn({ argv: ["nope"], env })).rejects.toMatchObject({
      stage: "exec",
      errno: 2,
    });
    await expect(spawner.guest.spawn({ argv: ["true"], env, cwd: "/nope" })).rejects.toMatchObject({
      stage: "cwd",
    });
    await expect(spawner.guest.spawn({ argv: ["true"], env, user: "nope" })).rejects.toBeInstanceOf(
      SpawnError,
    );
    await expect(spawner.guest.launch({ argv: [], env }).exited).rejects.toMatchObject({ stage: "request" });
  });

  it("gives a terminal", async () => {
    let screen = "";
    const shell = await spawner.guest.spawn({
      argv: ["sh", "-i"],
      env: { ...env, TERM: "dumb", PS1: "> " },
      pty: { cols: 80, rows: 24 },
      onOutput: (_s, chunk) => void (screen += chunk.toString()),
    });
    const type = async (line: string, answer: string) => {
      await shell.write(Buffer.from(`${line}\n`));
      await until(`${line}: ${answer}`, () => screen.includes(answer));
    };
    await type("tty", "/dev/pts/");
    await type("stty size", "24 80");
    shell.resize({ cols: 100, rows: 30 });
    await type("stty size", "30 100");
    await shell.write(Buffer.from("sleep 3003\n"));
    await until(
      "it sleeps",
      async () => (await run(spawner.guest, { argv: ["pgrep", "-f", "sleep 3003"] })) !== "",
    );
    await shell.write(Buffer.from("\u0003"));
    await until(
      "it is interrupted",
      async () => (await run(spawner.guest, { argv: ["pgrep", "-f", "sleep 3003"] })) === "",
    );
    await shell.write(Buffer.from("\n")); // gVisor leaves the ^C in the line
    await shell.write(Buffer.from("exit 7\n"));
    expect(await shell.exited).toEqual({ code: 7, signal: null });
  });

  it("waits for the taker of output before it says that a program has ended", async () => {
    const { promise: slow, resolve } = Promise.withResolvers<void>();
    let ended = false;
    const process = spawner.guest.launch({ argv: ["echo", "x"], env, onOutput: () => slow });
    void process.exited.then(() => (ended = true));
    await sleep(100);
    expect(ended).toBe(false);
    resolve();
    await process.exited;
  });

  it("runs two hundred programs at once", async () => {
    const texts = await Promise.all(
      Array.from({ length: 200 }, (_, i) => run(spawner.guest, { argv: ["echo", String(i)] })),
    );
    expect(texts).toEqual(Array.from({ length: 200 }, (_, i) => `${i}\n`));
  });

  it("survives that somebody kills everything but pid 1, and tells the truth", async () => {
    const victim = await spawner.guest.spawn({ argv: sh("sleep 3004"), env });
    await run(spawner.guest, { argv: sh("kill -9 -1; true") });
    expect(await victim.exited).toEqual({ code: 137, signal: 9 });
    expect(await run(spawner.guest, { argv: ["echo", "on"] })).toBe("on\n");
    const orphaned = await spawner.guest.spawn({ argv: sh("sleep 0.3; echo end; exit 6"), env });
    const launcher = (
      await run(spawner.guest, { argv: ["ps", "-o", "ppid=", "-p", String(orphaned.pid)] })
    ).trim();
    await run(spawner.guest, { argv: ["kill", "-9", launcher] });
    expect(await orphaned.exited).toEqual({ code: 6, signal: null });
  });

  it("keeps one waiting launcher after many programs at once, and misses none that is killed", async () => {
    // The exec that looks takes the one that waits.
    const names = () => run(spawner.guest, { argv: sh("ps -eo comm= | grep ^cloche- | sort") });
    await Promise.all(Array.from({ length: 40 }, () => run(spawner.guest, { argv: ["true"] })));
    await until("one launcher", async () => /^cloche-[0-9a-f]{8}\ncloche-init\n$/.test(await names()));

    let text = "";
    const looker = await spawner.guest.spawn({
      argv: sh(
        "read line; until pkill -9 -x cloche-waiting; do sleep 0.01; done; echo killed; read line; echo end",
      ),
      stdin: "pipe",
      env,
      onOutput: (_stream, chunk) => void (text += chunk.toString()),
    });
    expect(await run(spawner.guest, { argv: ["echo", "beside it"] })).toBe("beside it\n");
    void looker.write(Buffer.from("kill\n"));
    await until("the kill", () => text === "killed\n");
    for (let i = 0; i < 5; i += 1)
      expect(await run(spawner.guest, { argv: ["echo", String(i)] })).toBe(`${i}\n`);
    void looker.write(Buffer.from("end\n"));
    expect(await looker.exited).toEqual({ code: 0, signal: null });
    expect(text).toBe("killed\nend\n");
  });

  it("runs a program whose launcher was killed before it could start it", async () => {
    const [files = 0] = childrenOf(process.pid, "cloche-files");
    const [init = 0] = childrenOf(files, "cloche-init");
    await until("a launcher that waits", () => childrenOf(init, "cloche-waiting").length === 1);
    const [launcher = 0] = childrenOf(init, "cloche-waiting");
    // Init learns of the exec and of the launcher's end at once, of the exec first; the file server would let it go on.
    process.kill(files, "SIGSTOP");
    process.kill(init, "SIGSTOP");
    process.kill(launcher, "SIGKILL");
    const answer = run(spawner.guest, { argv: ["echo", "by another"] });
    await sleep(50);
    process.kill(init, "SIGCONT");
    process.kill(files, "SIGCONT");
    expect(await answer).toBe("by another\n");
  });

  it("lists nothing where nothing is wanted, and says that there is more", async () => {
    expect(await spawner.guest.files.list("/", 3, 0)).toEqual({ entries: [], truncated: true });
    expect(await run(spawner.guest, { argv: ["echo", "on"] })).toBe("on\n");
  });

  it("carries out in turn what is asked together, each with an answer of its own", async () => {
    const { files } = spawner.guest;
    const put = (path: string, text: string) => files.put(path, Buffer.from(text), 0o640);
    const asked = files.together(() => [
      put("/together/one", "first"),
      put("/together/one/below a file", ""),
      put("/together/two", "second"),
      put("/together/one", "later"),
    ]);
    const ended = await Promise.allSettled(asked);
    expect(ended.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled", "fulfilled"]);
    expect(ended[1]).toMatchObject({ reason: { errno: 20 } });
    expect(ended[0]).toMatchObject({ value: undefined });
    expect(await run(spawner.guest, { argv: sh("cd /together; cat one two; stat -c %a one; ls") })).toBe(
      "latersecond640\none\ntwo\n",
    );
    expect(files.together(() => "nothing")).toBe("nothing");
    const threads = fileServerThreads();
    expect(threads).toBeGreaterThan(0);
    await Promise.all(files.together(() => Array.from({ length: 40 }, (_, n) => put(`/together/${n}`, ""))));
    expect(fileServerThreads()).toBeLessThanOrEqual(threads + 1);
  });

  it("mounts what a system needs whatever the user made of the tree", async () => {
    const odd = makeDisk();
    symlinkSync("/etc", join(odd, "fs/proc"));
    writeFileSync(join(odd, "fs/dev"), "a file");
    symlinkSync("/nowhere", join(odd, "fs/tmp"));
    symlinkSync("/../../../../../../etc", join(odd, "fs/sys"));
    const other = new NativeSpawner(await guestBinary(), guestOptions);
    try {
      await other.attach(odd);
      expect(
        await run(other.guest, {
          argv: sh("echo x > /dev/null; echo y > /tmp/y; cat /tmp/y; id -u < /dev/zero"),
        }),
      ).toBe("y\n0\n");
      expect(existsSync("/etc/passwd")).toBe(true);
    } finally {
      await other.detach();
      rmSync(odd, { recursive: true, force: true });
    }
  });

  it("has containers: own root, own pids, the same network, and they go with the disk", async () => {
    const root = join(disk, "cloche/containers/one/rootfs");
    mkdirSync(join(root, "usr"), { recursive: true });
    for (const name of ["bin", "lib", "lib64"]) symlinkSync(`usr/${name}`, join(root, name));
    writeFileSync(join(root, "mark"), "container");
    const options = { root, hostname: "inside", ...guestOptions };
    const container = await spawner.openContainer("one", options);
    expect(spawner.container("one")).toBe(container);
    await expect(spawner.openContainer("one", options)).rejects.toMatchObject({ code: "already_exists" });
    expect(await run(container, { argv: sh("cat /mark; hostname; echo $$") })).toMatch(
      /^containerinside\n\d\n$/,
    );
    expect(await run(container, { argv: ["readlink", "/proc/self/ns/net"] })).toBe(
      await run(spawner.guest, { argv: ["readlink", "/proc/self/ns/net"] }),
    );
    await container.files.write("/written", Buffer.from("w"));
    expect(readFileSync(join(root, "written"), "utf8")).toBe("w");
    const lost: (string | null)[] = [];
    spawner.onLost((id) => lost.push(id));
    const held = await container.spawn({ argv: ["sleep", "3005"], env, tree: "hold" });
    await container.close();
    await expect(held.exited).rejects.toMatchObject({ stage: "lost" });
    expect(onMachine(`sleep\u00003005`)).toEqual([]);
    expect(spawner.container("one")).toBeUndefined();
    await spawner.openContainer("two", options);
  });

  it("lets go of the disk, with everything that ran on it", async () => {
    const sleeper = await spawner.guest.spawn({ argv: sh("setsid sleep 3006 & sleep 3006"), env });
    const file = await spawner.guest.files.open("/etc/passwd");
    const guest = spawner.guest;
    await spawner.detach();
    expect(onMachine(`sleep\u00003006`)).toEqual([]);
    expect(onMachine(disk)).toEqual([]);
    await expect(sleeper.exited).rejects.toMatchObject({ stage: "lost" });
    await expect(file.read(1_000_000, 1)).resolves.toHaveLength(0);
    await expect(guest.files.lstat("/")).rejects.toMatchObject({ code: "unavailable" });
    await expect(guest.launch({ argv: ["true"], env }).exited).rejects.toMatchObject({ stage: "lost" });
    expect(() => spawner.guest).toThrow("disk is not attached");
    await spawner.attach(disk);
    expect(await run(spawner.guest, { argv: ["echo", "back"] })).toBe("back\n");
  });

  it("starts a guest ahead of its disk, and another where that one ended", async () => {
    const ahead = new NativeSpawner(await guestBinary(), guestOptions);
    const own = makeDisk();
    const started = (): string[] =>
      onMachine("\u0000guest\u0000").filter((pid) => {
        const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
        return words.length === 3; // program, "guest", what follows the last NUL
      });
    const before = started();
    const added = (): string[] => started().filter((pid) => !before.includes(pid));
    ahead.expectAttach();
    ahead.expectAttach();
    await until("it waits", () => added().length > 0);
    const [waiting] = added();
    expect(added()).toHaveLength(1);
    await ahead.attach(own);
    expect(added()).toEqual([waiting]);
    expect(await run(ahead.guest, { argv: ["echo", "ahead"] })).toBe("ahead\n");
    await ahead.detach();
    expect(added()).toEqual([]);
    ahead.expectAttach();
    await until("another waits", () => added().length > 0);
    process.kill(Number(added()[0]), "SIGKILL");
    await ahead.attach(own);
    expect(await run(ahead.guest, { argv: ["echo", "again"] })).toBe("again\n");
    await ahead.detach();
    rmSync(own, { recursive: true, force: true });
  });

  it("renews what a guest out of a template shares, and runs programs as before", async () => {
    const renewed = new NativeSpawner(await guestBinary(), guestOptions);
    const own = makeDisk();
    await renewed.attach(own);
    const mounts = async (): Promise<string[]> => {
      const text = await run(renewed.guest, { argv: ["cat", "/proc/mounts"] });
      return text.split("\n").toSorted();
    };
    const before = await mounts();
    await renewed.guest.renew();
    await renewed.guest.renew();
    // Nothing twice, nothing missing, and procfs of the guest's own processes.
    expect(await mounts()).toEqual(before);
    expect(await run(renewed.guest, { argv: ["cat", "/proc/1/comm"] })).toBe("cloche-init\n");
    await renewed.detach();
    await expect(renewed.attach(own).then(() => renewed.guest.renew())).resolves.toBeUndefined();
    await renewed.detach();
    rmSync(own, { recursive: true, force: true });
  });

  const filesPid = (): number => Number(onMachine(join(disk, "fs"))[0]);
  const again = async (): Promise<void> => {
    await until("there is a guest again", () => {
      try {
        return Boolean(spawner.guest);
      } catch (error) {
        expect(error).toMatchObject({
          code: "unavailable",
          message: expect.stringContaining("started again"),
        });
        return false;
      }
    });
    expect(await run(spawner.guest, { argv: ["echo", "again"] })).toBe("again\n");
  };

  it.each<[string, () => number]>([
    ["pid 1 died", () => childrenOf(filesPid(), "cloche-init")[0] ?? 0],
    ["file server died", () => filesPid()],
  ])("starts the guest again when its %s, and says so", async (_what, pid) => {
    const lost: [string | null, string][] = [];
    spawner.onLost((id, { message }) => lost.push([id, message]));
    const running = spawner.guest.launch({ env, argv: ["sleep", "100"] });
    const ended = Promise.allSettled([running.exited]);
    process.kill(pid(), "SIGKILL");
    await until("the loss is told", () => lost.length > 0);
    expect(lost).toEqual([[null, expect.stringMatching(/^the guest's file server ended \(/)]]);
    expect((await ended)[0]).toMatchObject({ status: "rejected", reason: { stage: "lost" } });
    await again();
  });

  it("says each time why the guest cannot be started again", async () => {
    const causes: string[] = [];
    spawner.onLost((_id, { message }) => causes.push(message));
    renameSync(join(disk, "fs"), join(disk, "away"));
    process.kill(filesPid(), "SIGKILL");
    await until("it is told", () => causes.includes("its guest could not be started again"));
    renameSync(join(disk, "away"), join(disk, "fs"));
    await again();
  });

  it("names the reason when a root cannot be used", async () => {
    const other = new NativeSpawner(await guestBinary());
    await expect(other.attach("/nonexistent")).rejects.toMatchObject({ code: "unavailable" });
    const nowhere = new NativeSpawner("/nonexistent/binary");
    await expect(nowhere.attach(disk)).rejects.toMatchObject({ code: "unavailable" });
  });
});
