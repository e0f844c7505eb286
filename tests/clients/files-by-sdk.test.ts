// Files through the TypeScript SDK and the command line: streams of any size, rights, watches and links.
import { type ChildProcess, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type ClocheApiError, connectLocal, type FileChange } from "@cloche/sdk/node";
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const service = inject("service");
const env = { ...process.env, ...service.env };
const cli = join(repositoryRoot, "packages/cli/bin/cloche.mjs");
const cloche = await connectLocal(env);
const large = randomBytes(service.runtime === "gvisor" ? 40_000_000 : 5_000_000);
const sha256 = createHash("sha256").update(large).digest("hex");
let sandbox: Awaited<ReturnType<typeof cloche.create>>;
let folder: string;
beforeAll(async () => {
  sandbox = await cloche.create();
  folder = mkdtempSync("/var/tmp/cloche-files-test-");
});
afterAll(async () => {
  rmSync(folder, { recursive: true, force: true });
  await sandbox.delete();
  await cloche.close();
});

async function* pieces(content: Uint8Array, of = 100_000): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < content.length; at += of) yield content.subarray(at, at + of);
}
const sum = async (path: string): Promise<string> =>
  (await sandbox.exec(["sha256sum", path])).stdout.split(" ")[0] ?? "";

describe("uploads and downloads", () => {
  test.each([
    ["pieces", () => pieces(large)],
    ["a stream", () => new Blob([large]).stream()],
    ["a blob", () => new Blob([large])],
    ["bytes", () => new Uint8Array(large)],
  ])("of any size: %s", async (_kind, content) => {
    const entry = await sandbox.files.upload("/srv/up/large", content(), {
      sha256,
      mode: "0640",
      owner: "user",
    });
    expect(entry).toMatchObject({ size: large.length, permissions: "0640", user: "user" });
    expect(await sum("/srv/up/large")).toBe(sha256);
    const back = createHash("sha256");
    for await (const piece of await sandbox.files.readStream("/srv/up/large")) back.update(piece);
    expect(back.digest("hex")).toBe(sha256);
    await sandbox.files.delete("/srv/up", { recursive: true });
  });

  test("of other content than they say, or that break off, change nothing", async () => {
    await sandbox.files.write("/srv/kept", "before");
    const other = sandbox.files.upload("/srv/kept", "other", { sha256 });
    await expect(other).rejects.toMatchObject({ status: 400 });
    async function* broken(): AsyncGenerator<Uint8Array> {
      yield large.subarray(0, 300_000);
      throw new Error("no more of this");
    }
    await expect(sandbox.files.upload("/srv/kept", broken())).rejects.toThrow(/no more of this/);
    expect(await sandbox.files.readText("/srv/kept")).toBe("before");
  });

  test("append to what is there", async () => {
    await sandbox.files.append("/srv/log", "one\n");
    expect(await sandbox.files.append("/srv/log", pieces(Buffer.from("two\n"), 1))).toMatchObject({
      size: 8,
    });
    expect(await sandbox.files.readText("/srv/log")).toBe("one\ntwo\n");
    expect(await sandbox.files.readText("/srv/log", { asUser: "user" })).toBe("one\ntwo\n");
  });
});

describe("what a file is", () => {
  test("its version changes with its content", async () => {
    await sandbox.files.write("/srv/version", "one");
    const before = await sandbox.files.head("/srv/version");
    expect(before).toMatchObject({ size: 3, etag: expect.stringMatching(/^".+"$/) });
    expect(before.lastModified?.getTime()).toBeGreaterThan(Date.now() - 3_600_000);
    expect((await sandbox.files.head("/srv/version")).etag).toBe(before.etag);
    await sandbox.files.write("/srv/version", "two");
    expect((await sandbox.files.head("/srv/version")).etag).not.toBe(before.etag);
    await expect(sandbox.files.head("/srv/missing")).rejects.toMatchObject({ status: 404 });
  });

  test("its mode, its owner, and a copy that keeps them", async () => {
    await sandbox.files.write("/srv/tree/file", "x");
    expect(await sandbox.files.chmod("/srv/tree/file", "0600")).toMatchObject({ permissions: "0600" });
    await sandbox.files.chown("/srv/tree", { user: "user", group: 1000 }, { recursive: true });
    await sandbox.files.copy("/srv/tree", "/srv/copied", { recursive: true });
    expect(await sandbox.files.stat("/srv/copied/file")).toMatchObject({
      permissions: "0600",
      user: "user",
      group: "user",
    });
    await sandbox.exec(["ln", "-s", "file", "/srv/copied/link"]);
    expect((await sandbox.files.stat("/srv/copied/link")).symlink_target).toBe("file");
    expect((await sandbox.files.stat("/srv/copied/link", { follow: true })).permissions).toBe("0600");
  });

  test("errors say which case of a code they are", async () => {
    const reasonOf = (call: Promise<unknown>) =>
      call.then(
        () => "none",
        (error: ClocheApiError) => error.reason,
      );
    expect(await reasonOf(sandbox.files.read("/root"))).toBe("is_directory");
    expect(await reasonOf(sandbox.files.delete("/etc"))).toBe("not_empty");
    expect(await reasonOf(sandbox.files.read("/x", { asUser: "nobody-at-all" }))).toBe("no_such_user");
    expect(await reasonOf(sandbox.files.read("/nothing"))).toBeUndefined();
  });

  test("a user's rights, and no more", async () => {
    const asUser = "user";
    await expect(sandbox.files.read("/etc/shadow", { asUser })).rejects.toMatchObject({ status: 403 });
    await expect(sandbox.files.upload("/etc/new", "x", { asUser })).rejects.toMatchObject({ status: 403 });
    const mine = await sandbox.files.upload("/home/user/mine", "x", { asUser });
    expect(mine).toMatchObject({ user: "user", group: "user" });
    const refused = await Promise.allSettled([
      sandbox.files.copy("/etc/shadow", "/home/user/shadow", { asUser }),
      sandbox.files.chmod("/etc/passwd", "0666", { asUser }),
      sandbox.files.chown("/etc/passwd", { user: asUser }, { asUser }),
      sandbox.files.move("/etc/passwd", "/home/user/passwd", { asUser }),
      sandbox.files.delete("/etc/passwd", { asUser }),
      sandbox.files.mkdir("/etc/mine", { asUser }),
      sandbox.files.list("/root", { asUser }),
      sandbox.files.watch("/root/x", { asUser }),
    ]);
    for (const one of refused) expect(one).toMatchObject({ status: "rejected", reason: { status: 403 } });
  });
});

test("a link reads or writes one file without a token", async () => {
  await sandbox.files.write("/srv/linked", "before");
  const { url } = await sandbox.files.link("/srv/linked", { operation: "write", once: true });
  const { port } = new URL(url);
  const ca = ["--cacert", env["CLOCHE_CA_CERT"] ?? join(service.home, "tls/ca.pem")];
  const to = ["--connect-to", `::127.0.0.1:${port}`];
  const put = await runCommand("curl", ["-sS", "-f", ...ca, ...to, "-T", "-", url], { input: "by link" });
  expect(put.code, put.stderr).toBe(0);
  expect(await sandbox.files.readText("/srv/linked")).toBe("by link");
  const again = await runCommand("curl", ["-sS", "-f", ...ca, ...to, "-T", "-", url], { input: "twice" });
  expect(again.code).not.toBe(0);
});

describe("a watch", () => {
  test("tells what changes, from the moment it is there until it is closed", async () => {
    await sandbox.files.mkdir("/srv/watched/sub", { parents: true });
    const seen: FileChange[] = [];
    await using watch = await sandbox.files.watch("/srv/watched", { recursive: true });
    const reading = (async () => {
      for await (const change of watch) seen.push(change);
    })();
    await sandbox.files.write("/srv/watched/sub/a", "x");
    await sandbox.files.move("/srv/watched/sub/a", "/srv/watched/b");
    await sandbox.files.delete("/srv/watched/b");
    await eventually(
      () => seen,
      (all) => all.some(({ type }) => type === "deleted"),
    );
    const told = seen.map(({ type, path, from }) => `${type} ${from ?? ""} ${path}`);
    expect(told).toContain("created  /srv/watched/sub/a");
    expect(told).toContain("renamed /srv/watched/sub/a /srv/watched/b");
    expect(told.at(-1)).toBe("deleted  /srv/watched/b");
    watch.close();
    await reading;
  });

  test("ends with what it watches, and by its signal", async () => {
    await sandbox.files.mkdir("/srv/short");
    const watch = await sandbox.files.watch("/srv/short");
    await sandbox.files.delete("/srv/short");
    const types: string[] = [];
    for await (const { type } of watch) types.push(type);
    expect(types).toEqual(["deleted"]);
    const over = new AbortController();
    const other = await sandbox.files.watch("/srv", { signal: over.signal });
    setTimeout(() => over.abort(new Error("enough")), 100);
    await expect(
      (async () => {
        for await (const _ of other);
      })(),
    ).rejects.toThrow("enough");
    await expect(sandbox.files.watch("/srv/nothing/here")).rejects.toMatchObject({ status: 404 });
  });
});

describe("the command line", () => {
  const run = (...words: string[]) =>
    runCommand(process.execPath, [cli, ...words], { env, deadlineMs: 240_000 });

  test("copies files of any size both ways, with their modes", async () => {
    const [here, back] = [join(folder, "large"), join(folder, "back")];
    writeFileSync(here, large, { mode: 0o750 });
    await sandbox.files.mkdir("/srv/cp");
    expect(await run("cp", here, `${sandbox.id}:/srv/cp/large`)).toMatchObject({ code: 0, stderr: "" });
    expect(await sum("/srv/cp/large")).toBe(sha256);
    expect(await run("cp", `${sandbox.id}:/srv/cp/large`, back)).toMatchObject({ code: 0, stderr: "" });
    expect(readFileSync(back).equals(large)).toBe(true);
    expect(statSync(back).mode & 0o777).toBe(0o750);
    const line = `cat ${here} | ${process.execPath} ${cli} cp - ${sandbox.id}:/srv/cp/piped`;
    expect(await runCommand("sh", ["-c", line], { env, deadlineMs: 240_000 })).toMatchObject({ code: 0 });
    expect(await sum("/srv/cp/piped")).toBe(sha256);
  });

  test("writes into devices, FIFOs and links inside, and never replaces them", async () => {
    const small = join(folder, "small");
    writeFileSync(small, "into\n");
    const shell = async (script: string) => (await sandbox.exec(["sh", "-c", script])).stdout;
    await shell(
      "mkdir -p /srv/into && cd /srv/into && mkfifo fifo && ln -s /dev/null null && ln -s real link",
    );
    await shell("cd /srv/into && echo old > real && (timeout 60 cat fifo > read) > /dev/null 2>&1 &");
    for (const target of ["/dev/null", "/srv/into/null", "/srv/into/fifo", "/srv/into/link"])
      expect(await run("cp", small, `${sandbox.id}:${target}`)).toMatchObject({ code: 0, stderr: "" });
    const piped = `head -c 3000000 /dev/zero | ${process.execPath} ${cli} cp - ${sandbox.id}:/dev/null`;
    expect(await runCommand("sh", ["-c", piped], { env, deadlineMs: 240_000 })).toMatchObject({ code: 0 });
    expect(await run("cp", small, `${sandbox.id}:/dev/full`)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining(
        "cannot write into /dev/full: cat: write error: No space left",
      ) as string,
    });
    const kinds = await shell("stat -c %F /dev/null /srv/into/* && cat /srv/into/read /srv/into/real");
    expect(kinds.trim().split("\n").sort()).toEqual([
      "character special file",
      "fifo",
      "into",
      "into",
      "regular file",
      "regular file",
      "symbolic link",
      "symbolic link",
    ]);
  });

  test("keeps the numbers of an owner whose name only the sandbox knows", async () => {
    await sandbox.exec([
      "sh",
      "-c",
      "useradd -u 4321 ann && echo hers > /srv/hers && chown ann:ann /srv/hers",
    ]);
    const here = join(folder, "hers");
    expect(await run("cp", "-a", `${sandbox.id}:/srv/hers`, here)).toMatchObject({ code: 0, stderr: "" });
    expect(statSync(here)).toMatchObject({ uid: 4321, gid: 4321 });
  });

  test("watches until it is ended", async () => {
    const words = [cli, "--json", "watch", "-r", sandbox.id, "/srv/by-cli"];
    await sandbox.files.mkdir("/srv/by-cli");
    const watching: ChildProcess = spawn(process.execPath, words, { env, stdio: ["ignore", "pipe", "pipe"] });
    onTestFinished(() => void watching.kill("SIGKILL"));
    let [told, ready] = ["", ""];
    watching.stdout?.on("data", (data: Buffer) => (told += data.toString()));
    watching.stderr?.on("data", (data: Buffer) => (ready += data.toString()));
    expect(await eventually(() => ready, Boolean)).toContain("watching /srv/by-cli");
    await sandbox.files.write("/srv/by-cli/new", "x");
    await eventually(
      () => told,
      (text) => text.includes("\n"),
    );
    expect(JSON.parse(told.split("\n")[0] ?? "")).toMatchObject({ type: "created", path: "/srv/by-cli/new" });
    watching.kill("SIGINT");
    const code = await new Promise((resolve) => watching.once("exit", resolve));
    expect(code).toBe(130);
  });
});
