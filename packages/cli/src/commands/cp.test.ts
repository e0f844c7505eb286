import { execFile, execFileSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { parseCopyPath } from "../copy-path.ts";
import { failure, FakeService } from "../testing/fake-service.ts";

let folder: string;
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), "cloche-cp-test-"))));
afterEach(() => rmSync(folder, { recursive: true }));

/** A sandbox whose paths are of these kinds. */
function serviceWith(paths: Record<string, "file" | "directory">): FakeService {
  const service = new FakeService();
  const kinds: typeof paths = { "/": "directory", "/root": "directory", "/data": "directory", ...paths };
  service.answers["GET /v1/files/exists"] = ({ query }) => {
    const kind = kinds[query.get("path") ?? ""];
    return { exists: kind !== undefined, entry_type: kind ?? "" };
  };
  service.answers["GET /v1/files/stat"] = () => ({ permissions: "0755" });
  service.answers["PUT /v1/files"] = () => ({});
  // No device is among them.
  service.answers["POST /v1/exec"] = () => ({ exit_code: 1, stdout: "", stderr: "" });
  for (const route of ["archive", "mkdir", "chmod", "chown"])
    service.answers[`POST /v1/files/${route}`] = () => ({ ok: true });
  return service;
}

/** The last archive that was sent. */
const archiveSent = ({ asked }: FakeService) => asked.findLast(({ path }) => path === "/v1/files/archive");

const members = (tar: Uint8Array): string[] =>
  execFileSync("tar", ["-tf", "-"], { input: tar }).toString().trim().split("\n").sort();

test("a colon before the first slash makes a path remote", () => {
  expect(parseCopyPath("demo:/a:b")).toEqual({ sandbox: "demo", path: "/a:b" });
  for (const local of ["./a:b", "/a:b", "a", "-", ":/x"])
    expect(parseCopyPath(local).sandbox).toBeUndefined();
  expect(() => parseCopyPath("demo:x")).toThrow(/must be absolute, as in demo:\/root\/x/);
});

test("a file goes with its mode, into a directory where there is one", async () => {
  const service = serviceWith({ "/srv": "directory" });
  const file = join(folder, "run.sh");
  writeFileSync(file, "#!/bin/sh\n");
  chmodSync(file, 0o755);
  for (const [destination, path] of [
    ["/root/x", "/root/x"],
    ["/srv", "/srv/run.sh"],
    ["/srv/", "/srv/run.sh"],
  ]) {
    expect(await service.run(["cp", file, `demo:${destination}`])).toMatchObject({ code: 0, stderr: "" });
    const asked = service.asked.at(-1);
    expect(asked).toMatchObject({ method: "PUT", path: "/v1/files", text: "#!/bin/sh\n" });
    expect(asked?.query.get("path")).toBe(path);
    expect(asked?.headers.get("x-file-mode")).toBe("0755");
  }
});

test("a folder that is missing is an error, on both sides", async () => {
  const service = serviceWith({ "/f": "file", "/d": "directory" });
  const file = join(folder, "f");
  writeFileSync(file, "x");
  for (const [source, destination] of [
    [file, "demo:/new/"],
    [file, "demo:/new/name"],
    ["-", "demo:/new/name"],
    [folder, "demo:/new/name"],
    ["demo:/f", join(folder, "new/")],
    ["demo:/f", join(folder, "new", "name")],
    ["demo:/d", join(folder, "new", "name")],
  ] as const) {
    expect(await service.run(["cp", source, destination])).toMatchObject({
      code: 4,
      stderr: expect.stringMatching(/there is no folder/) as string,
    });
  }
  for (const [source, destination] of [
    [folder, "demo:/f"],
    [file, "demo:/f/"],
    ["demo:/d", file],
  ] as const)
    expect(await service.run(["cp", source, destination])).toMatchObject({ code: 1 });
  expect(readdirSync(folder)).toEqual(["f"]);
});

test.runIf(process.getuid?.() === 0)(
  "files belong to root or the user named, unless owners are kept",
  async () => {
    const service = serviceWith({});
    const file = join(folder, "f");
    writeFileSync(file, "x");
    chownSync(file, 1234, 1235);
    for (const [options, owners] of [
      [[], "0/0"],
      [["--archive"], "1234/1235"],
      [["--user", "ann"], "0/0"],
    ] as const) {
      await service.run(["cp", ...options, folder, "demo:/new"]);
      const packed = archiveSent(service);
      const list = execFileSync("tar", ["--numeric-owner", "-tvf", "-", "./f"], { input: packed?.body });
      expect(list.toString().split(/\s+/)[1]).toBe(owners);
      expect(packed?.query.get("as_user")).toBe(options.includes("--user" as never) ? "ann" : null);
      await service.run(["cp", ...options, file, "demo:/one"]);
      const sent = service.asked.at(-1);
      expect(sent?.headers.get("x-file-owner")).toBe(options.includes("--archive" as never) ? "1234" : null);
      expect(sent?.headers.get("x-file-group")).toBe(options.includes("--archive" as never) ? "1235" : null);
      expect(sent?.query.get("as_user")).toBe(options.includes("--user" as never) ? "ann" : null);
    }
    expect(await service.run(["cp", "-a", "-u", "ann", file, "demo:/one"])).toMatchObject({ code: 2 });
  },
);

test("files that change while they are packed are a warning", async () => {
  const service = serviceWith({});
  const tools = mkdtempSync(join(tmpdir(), "cloche-cp-tools-"));
  const tar = join(tools, "tar");
  const path = process.env["PATH"];
  process.env["PATH"] = `${tools}:${path}`;
  try {
    for (const [says, code] of [
      ["tar: ./log: file changed as we read it", 0],
      ["tar: ./log: File removed before we read it", 0],
      ["tar: ./log: Cannot open: Permission denied", 1],
    ] as const) {
      writeFileSync(tar, `#!/bin/sh\n[ "$1" = --version ] && exit\necho "${says}" >&2\nexit 1\n`);
      chmodSync(tar, 0o755);
      expect(await service.run(["cp", folder, "demo:/new"])).toMatchObject({
        code,
        stderr: expect.stringContaining(code === 0 ? `warning: ${says}` : says) as string,
      });
    }
  } finally {
    process.env["PATH"] = path;
    rmSync(tools, { recursive: true });
  }
});

test("a link, a device, a FIFO and >(program) are written into", async () => {
  const service = serviceWith({ "/f": "file" });
  service.answers["GET /v1/files"] = () => new Response("hello");
  const [real, link, dangling, fifo] = ["real", "link", "dangling", "fifo"].map((name) => join(folder, name));
  writeFileSync(real as string, "old");
  symlinkSync("real", link as string);
  symlinkSync("made", dangling as string);
  execFileSync("mkfifo", [fifo as string]);
  const reader = execFile("cat", [fifo as string]);
  const read = new Promise((resolve) => reader.stdout?.once("data", resolve));
  for (const target of [link, dangling, fifo])
    expect(await service.run(["cp", "demo:/f", target as string])).toMatchObject({ code: 0, stderr: "" });
  expect(await read).toBe("hello");
  expect(readFileSync(real as string, "utf8")).toBe("hello");
  expect(readFileSync(join(folder, "made"), "utf8")).toBe("hello");
  expect(lstatSync(link as string).isSymbolicLink()).toBe(true);
  expect(lstatSync(dangling as string).isSymbolicLink()).toBe(true);
  expect(lstatSync(fifo as string).isFIFO()).toBe(true);
  expect(await service.run(["cp", "demo:/f", "/dev/null"])).toMatchObject({ code: 0 });
  expect(lstatSync("/dev/null").isCharacterDevice()).toBe(true);
});

test("a file behind a link has the mode of the file", async () => {
  const service = serviceWith({ "/current": "file" });
  service.answers["GET /v1/files"] = () => new Response("secret");
  service.answers["GET /v1/files/stat"] = ({ query }) => ({
    permissions: query.get("follow") === "true" ? "0600" : "0777",
  });
  await service.run(["cp", "demo:/current", join(folder, "key")]);
  expect(statSync(join(folder, "key")).mode & 0o777).toBe(0o600);
});

test.runIf(process.getuid?.() === 0)(
  "a new directory has the mode of its source, and with --archive the owner; one that is there keeps its own",
  async () => {
    const service = serviceWith({
      "/there": "directory",
      "/private": "directory",
      "/private/.": "directory",
    });
    const source = join(folder, "private");
    mkdirSync(source, { mode: 0o700 });
    chownSync(source, 1234, 1235);
    const changes = async (...words: string[]): Promise<unknown[]> => {
      service.asked.length = 0;
      expect(await service.run(["cp", ...words])).toMatchObject({ code: 0, stderr: "" });
      return service.asked
        .filter(({ path }) => /(mkdir|archive|chmod|chown)$/.test(path))
        .map(({ path, text }) => (path.endsWith("archive") ? "archive" : JSON.parse(text)));
    };
    const made = { path: "/new", mode: "0700" };
    expect(await changes(source, "demo:/new")).toEqual([{ path: "/new" }, made, "archive", made]);
    expect(await changes("-a", source, "demo:/new")).toEqual([
      { path: "/new" },
      made,
      "archive",
      { path: "/new", user: 1234, group: 1235 },
      made,
    ]);
    expect(await changes(`${source}/.`, "demo:/there")).toEqual(["archive"]);

    const tar = execFileSync("tar", ["-C", source, "-cf", "-", "--files-from", "/dev/null"]);
    service.answers["GET /v1/files/archive"] = () => new Response(new Uint8Array(tar));
    service.answers["GET /v1/files/stat"] = () => ({ permissions: "0700" });
    service.answers["POST /v1/exec"] = () => ({ exit_code: 0, stdout: "1234 1235\n", stderr: "" });
    await changes("demo:/private", join(folder, "out"));
    expect(statSync(join(folder, "out"))).toMatchObject({ mode: 0o40700, uid: 0 });
    await changes("-a", "demo:/private", join(folder, "kept"));
    expect(statSync(join(folder, "kept"))).toMatchObject({ mode: 0o40700, uid: 1234, gid: 1235 });
    mkdirSync(join(folder, "there"));
    await changes("demo:/private/.", join(folder, "there"));
    expect(statSync(join(folder, "there"))).toMatchObject({ mode: 0o40755, uid: 0 });
  },
);

test("a large file goes piece by piece, also from behind a symlink", async () => {
  const service = serviceWith({});
  const file = join(folder, "big");
  const content = Buffer.alloc(3_000_001, "content ");
  writeFileSync(file, content);
  symlinkSync(file, join(folder, "link"));
  expect(await service.run(["cp", join(folder, "link"), "demo:/data/renamed.bin"])).toMatchObject({
    code: 0,
    stderr: "",
  });
  const asked = service.asked.at(-1);
  expect(asked).toMatchObject({ method: "PUT", path: "/v1/files" });
  expect(asked?.query.get("path")).toBe("/data/renamed.bin");
  expect(content.equals(asked?.body ?? new Uint8Array())).toBe(true);
});

test("a directory goes as an archive: as the destination, or into one that exists, or only its contents", async () => {
  const service = serviceWith({ "/srv": "directory" });
  mkdirSync(join(folder, "site", "css"), { recursive: true });
  writeFileSync(join(folder, "site", "index.html"), "x");
  for (const [source, destination, path] of [
    [join(folder, "site"), "/www", "/www"],
    [join(folder, "site"), "/srv", "/srv/site"],
    [`${join(folder, "site")}/.`, "/srv", "/srv"],
  ]) {
    expect(await service.run(["cp", source as string, `demo:${destination}`])).toMatchObject({
      code: 0,
      stderr: "",
    });
    expect(archiveSent(service)?.query.get("path")).toBe(path);
    expect(members(archiveSent(service)?.body ?? new Uint8Array())).toEqual(["./", "./css/", "./index.html"]);
  }
});

test("a file comes out with its mode, to a name, into a directory or to standard output", async () => {
  const service = serviceWith({ "/etc/motd": "file" });
  service.answers["GET /v1/files"] = () => new Response("hello");
  for (const [destination, path] of [
    [join(folder, "a"), join(folder, "a")],
    [folder, join(folder, "motd")],
  ]) {
    expect(await service.run(["cp", "demo:/etc/motd", destination as string])).toMatchObject({
      code: 0,
      stderr: "",
    });
    expect(readFileSync(path as string, "utf8")).toBe("hello");
    expect(statSync(path as string).mode & 0o777).toBe(0o755);
  }
  expect((await service.run(["cp", "demo:/etc/motd", "-"])).stdout).toBe("hello");
  expect(readdirSync(folder).sort()).toEqual(["a", "motd"]);
});

test("a copy that breaks off leaves no half", async () => {
  const service = serviceWith({ "/f": "file" });
  service.answers["GET /v1/files"] = () =>
    new Response(
      new ReadableStream({
        pull(controller) {
          controller.enqueue(new Uint8Array(10));
          controller.error(new TypeError("terminated"));
        },
      }),
    );
  expect(await service.run(["cp", "demo:/f", join(folder, "f")])).toMatchObject({ code: 1 });
  expect(readdirSync(folder)).toEqual([]);
});

test("a directory comes out, and nothing in it leaves the destination", async () => {
  const service = serviceWith({ "/var/log": "directory" });
  const inside = join(folder, "inside");
  mkdirSync(inside);
  writeFileSync(join(inside, "syslog"), "x");
  const out = join(folder, "out");
  let tar = execFileSync("tar", ["-C", inside, "-cf", "-", "."]);
  service.answers["GET /v1/files/archive"] = () => new Response(new Uint8Array(tar));
  expect(await service.run(["cp", "demo:/var/log", out])).toMatchObject({ code: 0, stderr: "" });
  expect(readdirSync(out)).toEqual(["syslog"]);
  mkdirSync(join(folder, "existing"));
  await service.run(["cp", "demo:/var/log", join(folder, "existing")]);
  expect(readdirSync(join(folder, "existing"))).toEqual(["log"]);

  // What a hostile sandbox would send: a symlink out, and a file through it.
  const hostile = join(folder, "hostile");
  mkdirSync(hostile);
  symlinkSync("..", join(hostile, "up"));
  const first = execFileSync("tar", ["-C", hostile, "-cf", "-", "up"]);
  rmSync(join(hostile, "up"));
  mkdirSync(join(hostile, "up"));
  writeFileSync(join(hostile, "up", "escaped"), "x");
  const second = execFileSync("tar", ["-C", hostile, "-cf", "-", "up/escaped"]);
  tar = Buffer.concat([first.subarray(0, 512), second]);
  await service.run(["cp", "demo:/var/log", join(folder, "out2")]);
  expect(readdirSync(folder)).not.toContain("escaped");
});

test("what cannot be copied is said", async () => {
  const service = serviceWith({ "/d": "directory" });
  expect(await service.run(["cp", "a", "b"])).toMatchObject({ code: 2 });
  expect(await service.run(["cp", "demo:/a", "demo:/b"])).toMatchObject({ code: 2 });
  expect(await service.run(["cp", join(folder, "missing"), "demo:/x"])).toMatchObject({ code: 4 });
  expect(await service.run(["cp", "demo:/missing", folder])).toMatchObject({ code: 4 });
  expect(await service.run(["cp", "demo:/d", "-"])).toMatchObject({ code: 2 });
  service.answers["POST /v1/files/archive"] = () => failure(507, "resource_exhausted", "the disk is full");
  mkdirSync(join(folder, "d"));
  expect(await service.run(["cp", join(folder, "d"), "demo:/x"])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("disk is full") as string,
  });
});

test("standard input goes into a file", async () => {
  const service = serviceWith({});
  await service.run(["cp", "-", "demo:/x"], "piped");
  expect(service.asked.at(-1)).toMatchObject({ path: "/v1/files", text: "piped" });
});
