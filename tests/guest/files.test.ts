import { execFileSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { limits } from "@cloche/protocol";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Answer, token } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isGvisor, isRoot, startGuestAgent, until } from "./guest-fixture.ts";

let guest: GuestFixture;
beforeAll(async () => {
  if (isRoot) guest = await startGuestAgent();
});
afterAll(() => guest?.close());

const q = (path: string, more = ""): string => `path=${encodeURIComponent(path)}${more}`;
const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
const get = (path: string, headers: Record<string, string> = {}): Promise<Answer> =>
  guest.call("GET", `/v1/files?${q(path)}`, { headers });
const write = (path: string, raw: string | Buffer, headers: Record<string, string> = {}): Promise<Answer> =>
  guest.call("POST", `/v1/files?${q(path)}`, { raw, headers });
const stat = (path: string): Promise<Answer> => guest.call("GET", `/v1/files/stat?${q(path)}`);
const names = (answer: Answer): string[] =>
  (answer.json["entries"] as { path: string }[]).map(({ path }) => path);

describe.skipIf(!isRoot)("files", () => {
  it("writes with parents and reads back", async () => {
    const answer = await write("/data/deep/er/file.bin", Buffer.from([0, 255, 10]), {
      "x-file-mode": "0750",
    });
    expect(answer).toMatchObject({
      status: 200,
      json: {
        name: "file.bin",
        path: "/data/deep/er/file.bin",
        size: 3,
        modified_at: expect.stringMatching(/^\d{4}-.*\.\d{3}Z$/),
        is_dir: false,
        permissions: "0750",
        owner: "root",
        group: "root",
        symlink_target: "",
      },
    });
    expect(readFileSync(onDisk("data/deep/er/file.bin"))).toEqual(Buffer.from([0, 255, 10]));
    const read = await get("/data/deep/er/file.bin");
    expect(read.headers).toMatchObject({ "content-length": "3", "content-type": "application/octet-stream" });
    expect((await stat("/data/deep/er/file.bin")).json).toEqual(answer.json);
  });

  it("replaces in one step and keeps owner and mode", async () => {
    await write("/keep", "old", { "x-file-mode": "640" });
    chownSync(onDisk("keep"), 1000, 2000);
    chmodSync(onDisk("keep"), 0o4711);
    expect((await write("/keep", "new")).json).toMatchObject({
      permissions: "4711",
      owner: "ann",
      group: "crew",
      size: 3,
    });
    expect((await write("/keep", "newer", { "x-file-mode": "600" })).json).toMatchObject({
      permissions: "0600",
    });
    expect(readFileSync(onDisk("keep"), "utf8")).toBe("newer");
    expect((await write("/fresh", "x")).json).toMatchObject({ permissions: "0644" });
    expect(
      names(await guest.call("GET", "/v1/files/list?path=/")).filter((path) => path.includes(".cloche")),
    ).toEqual([]);
  });

  it("takes 1,048,576 bytes and not one more, however they are announced", async () => {
    const most = Buffer.alloc(limits.fileWriteBytes, "m");
    expect((await write("/limit", most)).json).toMatchObject({ size: limits.fileWriteBytes });
    const over = Buffer.alloc(limits.fileWriteBytes + 1, "o");
    expect(await write("/limit", over)).toMatchObject({ status: 413, json: { code: "resource_exhausted" } });
    expect(await write("/limit", over, { "transfer-encoding": "chunked" })).toMatchObject({ status: 413 });
    expect(await write("/not-made", over)).toMatchObject({ status: 413 });
    expect((await get("/limit")).text).toBe(most.toString());
    expect(existsSync(onDisk("not-made"))).toBe(false);
  });

  it("takes a body in as many pieces as it comes", async () => {
    for (const count of [3, 1_000]) {
      const socket = connect(guest.port, "127.0.0.1");
      socket.setNoDelay(true);
      socket.write(
        `POST /v1/files?path=/pieces HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n`,
      );
      const pieces = Array.from({ length: count }, (_, index) => `piece ${index};`);
      for (const piece of pieces) socket.write(`${piece.length.toString(16)}\r\n${piece}\r\n`);
      socket.write("0\r\n\r\n");
      let answer = "";
      for await (const chunk of socket) answer += String(chunk);
      expect(answer).toContain("HTTP/1.1 200 ");
      expect((await get("/pieces")).text).toBe(pieces.join(""));
    }
  });

  it("leaves the old file when the client goes away in the middle", async () => {
    await write("/half", "whole");
    const socket = connect(guest.port, "127.0.0.1");
    socket.write(
      `POST /v1/files?path=/half HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\ncontent-length: 10\r\n\r\nhalf`,
    );
    await sleep(100);
    socket.destroy();
    await sleep(100);
    expect((await get("/half")).text).toBe("whole");
  });

  it("follows links on read and write, inside the sandbox's tree only", async () => {
    symlinkSync("/target-of-link", onDisk("link"));
    symlinkSync("../../../../../../etc/hosts-of-link", onDisk("up"));
    symlinkSync("loop", onDisk("loop"));
    expect((await write("/link", "through")).json).toMatchObject({
      path: "/link",
      size: 7,
      symlink_target: "",
    });
    expect(readFileSync(onDisk("target-of-link"), "utf8")).toBe("through");
    expect(lstatSync(onDisk("link")).isSymbolicLink()).toBe(true);
    expect((await get("/link")).text).toBe("through");
    await write("/up", "inside");
    expect(readFileSync(onDisk("etc/hosts-of-link"), "utf8")).toBe("inside");
    expect((await stat("/link")).json).toMatchObject({ symlink_target: "/target-of-link", is_dir: false });
    expect((await write("/loop", "x")).status).toBe(400);
    expect((await get("/loop")).status).toBe(400);
  });

  it("reads ranges", async () => {
    await write("/range", "0123456789");
    expect(await get("/range", { range: "bytes=2-4" })).toMatchObject({
      status: 206,
      text: "234",
      headers: { "content-range": "bytes 2-4/10", "content-length": "3" },
    });
    expect((await get("/range", { range: "bytes=7-" })).text).toBe("789");
    expect((await get("/range", { range: "bytes=-2" })).text).toBe("89");
    expect((await get("/range", { range: "bytes=5-99" })).text).toBe("56789");
    expect(await get("/range", { range: "bytes=10-" })).toMatchObject({
      status: 416,
      headers: { "content-range": "bytes */10" },
    });
    expect((await get("/range", { range: "bytes=4-2" })).status).toBe(200);
    expect((await get("/range", { range: "lines=1-2" })).text).toBe("0123456789");
  });

  it("streams files of any size, empty ones and those of procfs", async () => {
    await guest.exec({ cmd: ["sh", "-c", "seq 1 2000000 > /big"] });
    const { size } = statSync(onDisk("big"));
    expect(size).toBeGreaterThan(10_000_000);
    const read = await get("/big");
    expect(read.text.length).toBe(size);
    expect(read.text.endsWith("\n1999999\n2000000\n")).toBe(true);
    expect((await get("/big", { range: `bytes=${size - 8}-` })).text).toBe("2000000\n");
    await write("/empty", "");
    expect(await get("/empty")).toMatchObject({ status: 200, text: "", headers: { "content-length": "0" } });
    expect((await get("/proc/meminfo")).text).toContain("MemTotal");
  });

  it("never blocks on what is no file", async () => {
    await guest.exec({
      cmd: [
        "sh",
        "-c",
        "mkfifo /pipe; mknod /null c 1 3; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/sock\")'",
      ],
    });
    const special = ["/pipe", "/sock", ...(isGvisor ? [] : ["/null"])]; // gVisor makes no devices on the disk
    for (const path of [...special, "/dev/zero"]) {
      expect(await get(path), path).toMatchObject({ status: 400, json: { code: "invalid_argument" } });
      expect(await write(path, "x"), path).toMatchObject({ status: 400 });
      expect((await guest.call("GET", `/v1/files/exists?${q(path)}`)).json).toEqual({
        exists: true,
        entry_type: "file",
      });
    }
    for (const path of special)
      expect((await guest.call("DELETE", `/v1/files?${q(path)}`)).json).toEqual({ ok: true });
  });

  it.each([
    ["relative", "path=root/x"],
    ["empty", "path="],
    ["missing", ""],
    ["NUL", "path=/a%00b"],
    ["too long", `path=/${"x".repeat(4_095)}`],
    ["a name too long", `path=/${"x".repeat(300)}`],
    ["through a file", "path=/etc/passwd/x"],
    ["half percent-encoded", "path=/a%zz"],
    ["no UTF-8", "path=/a%ff"],
  ])("refuses a path that is %s", async (_what, query) => {
    for (const [method, path] of [
      ["GET", "/v1/files"],
      ["POST", "/v1/files"],
      ["DELETE", "/v1/files"],
      ["GET", "/v1/files/stat"],
      ["GET", "/v1/files/list"],
      ["GET", "/v1/files/archive"],
    ] as const) {
      expect((await guest.call(method, `${path}?${query}`)).status, `${method} ${path}`).toBe(400);
    }
  });

  it("tells a file from a directory", async () => {
    expect((await get("/etc")).status).toBe(400);
    expect((await write("/etc", "x")).status).toBe(400);
    expect((await write("/etc/", "x")).status).toBe(400);
    expect((await guest.call("GET", "/v1/files/list?path=/etc/passwd")).status).toBe(400);
    expect((await get("/etc/passwd/")).status).toBe(400);
    for (const path of ["/v1/files", "/v1/files/stat", "/v1/files/list"])
      expect(await guest.call("GET", `${path}?path=/nothing`)).toMatchObject({
        status: 404,
        json: { code: "not_found" },
      });
    expect((await write("/mode", "x", { "x-file-mode": "abc" })).status).toBe(400);
    expect((await write("/mode", "x", { "x-file-mode": "888" })).status).toBe(400);
  });

  it("knows what exists", async () => {
    const exists = async (path: string) => (await guest.call("GET", `/v1/files/exists?${q(path)}`)).json;
    symlinkSync("/nowhere", onDisk("dangling"));
    expect(await exists("/etc/passwd")).toEqual({ exists: true, entry_type: "file" });
    expect(await exists("/etc")).toEqual({ exists: true, entry_type: "directory" });
    expect(await exists("/dangling")).toEqual({ exists: true, entry_type: "symlink" });
    expect(await exists("/nowhere")).toEqual({ exists: false, entry_type: "" });
    expect(await exists("/etc/passwd/below")).toEqual({ exists: false, entry_type: "" });
  });

  it("names with spaces, plus, percent and letters of the world", async () => {
    for (const name of ["a b", "a+b", "100%", "größe", "日本", "new\nline", "-rf", "#?&="]) {
      expect((await write(`/odd/${name}`, name)).json).toMatchObject({ name, path: `/odd/${name}` });
      expect((await get(`/odd/${name}`)).text).toBe(name);
    }
    expect((await guest.call("GET", "/v1/files/list?path=/odd/")).json).toMatchObject({ path: "/odd" });
    expect(names(await guest.call("GET", "/v1/files/list?path=/odd"))).toHaveLength(8);
    expect((await guest.call("GET", "/v1/files/stat?path=//odd/./a+b")).json).toMatchObject({
      path: "/odd/a b",
    });
  });

  it("lists by path, to a depth, and says what it left out", async () => {
    for (const path of ["/list/a-b", "/list/a/x/y", "/list/a/z", "/list/b"]) await write(path, path);
    mkdirSync(onDisk("list/hollow"));
    const list = async (more = "") => guest.call("GET", `/v1/files/list?path=/list${more}`);
    const flat = await list();
    expect(names(flat)).toEqual(["/list/a", "/list/a-b", "/list/b", "/list/hollow"]);
    expect(flat.json).toMatchObject({ path: "/list", truncated: true });
    expect((flat.json["entries"] as unknown[])[0]).toMatchObject({
      name: "a",
      is_dir: true,
      permissions: "0755",
    });
    expect(names(await list("&depth=2"))).toEqual([
      "/list/a",
      "/list/a-b",
      "/list/a/x",
      "/list/a/z",
      "/list/b",
      "/list/hollow",
    ]);
    const whole = await list("&depth=9");
    expect(names(whole)).toHaveLength(7);
    expect(whole.json["truncated"]).toBe(false);
    expect((await guest.call("GET", "/v1/files/list?path=/list/hollow")).json).toEqual({
      path: "/list/hollow",
      entries: [],
      truncated: false,
    });
    for (const depth of ["0", "-1", "x", "1.5"]) expect((await list(`&depth=${depth}`)).status).toBe(400);
  });

  it("lists the first 10,000 of more", async () => {
    const { exit_code } = await guest.exec({
      cmd: [
        "sh",
        "-c",
        "mkdir -p /many/m/sub && cd /many && seq -f 'n%06g' 1 10500 | xargs touch && touch m/a m/sub/b",
      ],
    });
    expect(exit_code).toBe(0);
    const { json } = await guest.call("GET", "/v1/files/list?path=/many&depth=5");
    const paths = (json["entries"] as { path: string }[]).map(({ path }) => path);
    expect(paths).toHaveLength(10_000);
    expect(paths.slice(0, 5)).toEqual([
      "/many/m",
      "/many/m/a",
      "/many/m/sub",
      "/many/m/sub/b",
      "/many/n000001",
    ]);
    expect(paths).toEqual([...paths].sort());
    expect(json["truncated"]).toBe(true);
  });

  it("makes directories", async () => {
    const mkdir = (body: unknown) => guest.call("POST", "/v1/files/mkdir", { body });
    expect(await mkdir({ path: "/made" })).toMatchObject({
      status: 200,
      json: { path: "/made", is_dir: true },
    });
    expect(await mkdir({ path: "/made" })).toMatchObject({ status: 409, json: { code: "already_exists" } });
    expect(await mkdir({ path: "/made", parents: true })).toMatchObject({ status: 200 });
    expect(await mkdir({ path: "/made/x/y" })).toMatchObject({ status: 404 });
    expect(await mkdir({ path: "/made/x/y/", parents: true })).toMatchObject({
      status: 200,
      json: { name: "y" },
    });
    expect(await mkdir({ path: "/etc/passwd", parents: true })).toMatchObject({ status: 409 });
    expect(await mkdir({ path: "/etc/passwd/x" })).toMatchObject({ status: 400 });
    expect(await mkdir({ path: "x" })).toMatchObject({ status: 400 });
    expect(await mkdir({ path: 1 })).toMatchObject({ status: 400 });
    expect(await mkdir({})).toMatchObject({ status: 400 });
  });

  it("deletes", async () => {
    const remove = (path: string, more = "") => guest.call("DELETE", `/v1/files?${q(path, more)}`);
    await write("/del/a/b", "x");
    await write("/del/c", "x");
    symlinkSync("/etc", onDisk("del/link"));
    expect(await remove("/del")).toMatchObject({ status: 409, json: { code: "failed_precondition" } });
    expect(await remove("/del", "&recursive=false")).toMatchObject({ status: 409 });
    expect(await remove("/del", "&recursive=maybe")).toMatchObject({ status: 400 });
    expect((await remove("/del/c")).json).toEqual({ ok: true });
    expect((await remove("/del", "&recursive=true")).json).toEqual({ ok: true });
    expect(existsSync(onDisk("etc/passwd"))).toBe(true);
    expect(await remove("/del")).toMatchObject({ status: 404 });
    expect(await remove("/", "&recursive=true")).toMatchObject({ status: 400 });
    expect(await remove("/tmp", "&recursive=true")).toMatchObject({ status: 409 });
    mkdirSync(onDisk("hollow"));
    expect((await remove("/hollow")).json).toEqual({ ok: true });
  });

  it("deletes a tree that is deeper than any path", async () => {
    const script =
      "import os\nos.mkdir('/abyss'); os.chdir('/abyss')\nfor i in range(3000): os.mkdir('deeper'); os.chdir('deeper'); open('f','w').close()";
    expect((await guest.exec({ cmd: ["python3", "-c", script] })).exit_code).toBe(0);
    expect((await guest.call("GET", "/v1/files/list?path=/abyss&depth=100000")).status).toBe(200);
    expect((await guest.call("DELETE", "/v1/files?path=/abyss&recursive=true")).json).toEqual({ ok: true });
    expect(existsSync(onDisk("abyss"))).toBe(false);
  });

  it("moves, across file systems too", async () => {
    const move = (source: string, destination: string) =>
      guest.call("POST", "/v1/files/move", { body: { source, destination } });
    await write("/move/from", "content", { "x-file-mode": "0751" });
    expect((await move("/move/from", "/move/to")).json).toMatchObject({
      path: "/move/to",
      permissions: "0751",
    });
    expect(await move("/move/from", "/move/to")).toMatchObject({ status: 404 });
    await write("/move/other", "other");
    expect((await move("/move/to", "/move/other")).json).toMatchObject({ size: 7 });
    expect(await move("/move/other", "/etc")).toMatchObject({
      status: 409,
      json: { code: "already_exists" },
    });
    expect(await move("/move/other", "/no/where")).toMatchObject({ status: 404 });
    expect((await move("/move/other", "/no/where")).json["message"]).toContain("destination");
    expect(await move("/move", "/move/into/itself")).toMatchObject({ status: 404 });
    mkdirSync(onDisk("move/sub"));
    expect(await move("/move", "/move/sub/itself")).toMatchObject({ status: 400 });
    expect(await move("/move", "/fresh")).toMatchObject({ status: 400 });
    symlinkSync("../etc", onDisk("move/link"));
    chownSync(onDisk("move/other"), 1000, 1000);
    expect((await move("/move", "/tmp/moved")).json).toMatchObject({ path: "/tmp/moved", is_dir: true });
    expect(existsSync(onDisk("move"))).toBe(false);
    const { json } = await guest.call("GET", "/v1/files/list?path=/tmp/moved");
    expect(json["entries"]).toMatchObject([
      { name: "link", symlink_target: "../etc" },
      { name: "other", owner: "ann", permissions: "0751", size: 7 },
      { name: "sub", is_dir: true },
    ]);
    expect((await move("/tmp/moved/other", "/keep")).json).toMatchObject({ owner: "ann" });
    expect(await move("/tmp/moved", "/keep")).toMatchObject({ status: 400 });
    expect(await move("a", "/b")).toMatchObject({ status: 400 });
  });
});

const archive = (method: string, path: string, raw?: Buffer): Promise<Answer> =>
  guest.call(method, `/v1/files/archive?${q(path)}`, raw === undefined ? {} : { raw });

/** A tar made by Python, in its default (pax) format, from statements on `t`. */
function pythonTar(statements: string): Buffer {
  const script = `import tarfile,io,sys
out=io.BytesIO(); t=tarfile.open(fileobj=out,mode='w')
def add(name,data=b'',**k):
  i=tarfile.TarInfo(name); i.size=len(data)
  for n,v in k.items(): setattr(i,n,v)
  t.addfile(i,io.BytesIO(data))
${statements}
t.close(); sys.stdout.buffer.write(out.getvalue())`;
  return execFileSync("python3", ["-c", script], { maxBuffer: 1 << 28 });
}

/** A download as bytes. */
async function download(path: string): Promise<Buffer> {
  const response = await fetch(`http://127.0.0.1:${guest.port}/v1/files/archive?${q(path)}`, {
    headers: { authorization: `Bearer ${token()}` },
  });
  expect(response.status).toBe(200);
  expect(response.headers.get("content-type")).toBe("application/x-tar");
  return Buffer.from(await response.arrayBuffer());
}

describe.skipIf(!isRoot)("archives", () => {
  it("goes out and comes in the same", async () => {
    const long = "n".repeat(120);
    const script = `mkdir -p 'src/${long}/größe' && cd src && echo a > a && ln a hard && ln -s ../a soft && chown 1000:2000 a && chmod 4755 a && mkfifo fifo && echo deep > '${long}/größe/${long}' && seq 1 500000 > big && touch -d '2001-02-03 04:05:06' big && mkdir -m 500 hollow`;
    expect(await guest.exec({ cmd: ["sh", "-c", script] })).toMatchObject({ exit_code: 0 });
    const tar = await download("/root/src");
    expect(tar.length % 512).toBe(0);
    const listed = execFileSync("tar", ["-tvf", "-", "--quoting-style=literal"], { input: tar }).toString();
    expect(listed).toContain(`${long}/größe/${long}`);
    expect(await archive("POST", "/root/copy/here", tar)).toMatchObject({
      status: 200,
      json: { ok: true, skipped: 0 },
    });
    const listing = (dir: string) =>
      guest.exec({
        cmd: [
          "sh",
          "-c",
          `cd ${dir} && find . -type d -o -printf '%p %y %m %u %g %s %T@ %l\\n' | sort; find . -type f | sort | xargs md5sum; find . -type d -printf '%p %m\\n' | sort`,
        ],
      });
    expect((await listing("/root/copy/here")).stdout).toBe(
      (await listing("/root/src")).stdout.replaceAll(/(\d)\.\d+ /g, "$1.0000000000 "),
    );
    expect(lstatSync(onDisk("root/copy/here/a")).nlink).toBe(2);
    expect(lstatSync(onDisk("root/copy/here/big")).mtimeMs).toBe(Date.parse("2001-02-03T04:05:06Z"));
  });

  it("takes archives of GNU tar and Python, gzip too", async () => {
    const long = "l".repeat(150);
    const tar = pythonTar(
      `add('größe/${long}/${long}',b'deep'); add('plain',b'plain',mode=0o640,uid=1000,mtime=1.5)`,
    );
    expect((await archive("POST", "/in/pax", tar)).json).toEqual({ ok: true, entries: 2, skipped: 0 });
    expect(readFileSync(onDisk(`in/pax/größe/${long}/${long}`), "utf8")).toBe("deep");
    expect((await stat("/in/pax/plain")).json).toMatchObject({ permissions: "0640", owner: "ann" });
    const gnu = execFileSync("tar", ["-C", "/usr/lib", "-czf", "-", "--format=gnu", "os-release", "apt"]);
    expect(await archive("POST", "/in/gnu", gnu)).toMatchObject({ status: 200 });
    expect(statSync(onDisk("in/gnu/apt/methods/http")).size).toBe(statSync("/usr/lib/apt/methods/http").size);
  });

  it("lets nothing escape, and skips what tries to", async () => {
    const tar = pythonTar(
      "add('../../escaped',b'x'); add('/absolute',b'y'); add('a/../../b',b'z'); add('evil',type=b'2',linkname='/etc'); add('evil/through-link',b'w'); add('hard',type=b'1',linkname='../../../etc/passwd'); add('ok',b'ok')",
    );
    expect(await archive("POST", "/jail/in", tar)).toMatchObject({
      status: 200,
      json: { ok: true, skipped: 3 },
    });
    expect(
      existsSync(onDisk("escaped")) || existsSync(onDisk("jail/escaped")) || existsSync("/escaped"),
    ).toBe(false);
    expect(readFileSync(onDisk("jail/in/absolute"), "utf8")).toBe("y");
    expect(existsSync("/etc/through-link")).toBe(false);
    expect(existsSync(onDisk("etc/through-link"))).toBe(true); // a link of the user's own, in the user's own tree
    expect(readFileSync(onDisk("jail/in/ok"), "utf8")).toBe("ok");
  });

  it("replaces files, and keeps links to directories", async () => {
    await write("/over/file", "old");
    symlinkSync("real", onDisk("over/dir"));
    mkdirSync(onDisk("over/real"));
    writeFileSync(onDisk("over/was-link-target"), "safe");
    symlinkSync("was-link-target", onDisk("over/link"));
    const tar = pythonTar(
      "add('file',b'new'); add('dir',type=b'5',mode=0o755); add('dir/in',b'in'); add('link',b'replaced')",
    );
    expect((await archive("POST", "/over", tar)).status).toBe(200);
    expect(readFileSync(onDisk("over/file"), "utf8")).toBe("new");
    expect(readFileSync(onDisk("over/real/in"), "utf8")).toBe("in");
    expect(readFileSync(onDisk("over/was-link-target"), "utf8")).toBe("safe");
    expect(readFileSync(onDisk("over/link"), "utf8")).toBe("replaced");
  });

  it.each<[string, () => Buffer]>([
    ["no archive", () => Buffer.from("hello ".repeat(200))],
    ["an empty body", () => Buffer.alloc(0)],
    ["a cut archive", () => pythonTar("add('a',b'x'*5000)").subarray(0, 2_000)],
    [
      "a broken header",
      () => Buffer.concat([pythonTar("add('a',b'x')").subarray(0, 1_024), Buffer.alloc(512, "z")]),
    ],
    ["broken gzip", () => Buffer.from([0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5, 6, 7])],
  ])("refuses %s", async (_what, make) => {
    expect(await archive("POST", "/refused", make())).toMatchObject({
      status: 400,
      json: { code: "invalid_argument" },
    });
  });

  it("answers for what is no directory", async () => {
    expect(await archive("GET", "/nothing-here")).toMatchObject({ status: 404 });
    expect(await archive("GET", "/etc/passwd")).toMatchObject({ status: 400 });
    expect(await archive("POST", "/etc/passwd", pythonTar("add('a')"))).toMatchObject({ status: 400 });
    expect((await download("/etc")).length).toBeGreaterThan(1_024);
  });

  it("ends with its client", async () => {
    await guest.exec({ cmd: ["sh", "-c", "mkdir /huge; head -c 200000000 /dev/zero > /huge/zeros"] });
    const socket = connect(guest.port, "127.0.0.1");
    socket.write(
      `GET /v1/files/archive?path=/huge HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\n\r\n`,
    );
    const running = async () =>
      (await guest.exec({ cmd: ["ps", "-eo", "args"] })).stdout.includes("tar-create");
    await until("it is being packed", running);
    socket.destroy();
    await until("packing ended", async () => !(await running()));
    await guest.call("DELETE", "/v1/files?path=/huge&recursive=true");
  });

  it("says when the disk is full", async () => {
    const full = pythonTar("add('a',b'x'*3000000)");
    expect(
      await guest.exec({ cmd: ["sh", "-c", "mkdir /small && mount -t tmpfs -o size=1m tmpfs /small"] }),
    ).toMatchObject({ exit_code: 0 });
    expect(await archive("POST", "/small", full)).toMatchObject({
      status: 507,
      json: { code: "resource_exhausted" },
    });
    await guest.call("DELETE", "/v1/files?path=/small/a");
    await write("/small/a", Buffer.alloc(700_000, "a"));
    expect(await write("/small/b", Buffer.alloc(700_000, "b"))).toMatchObject({ status: 507 });
    expect(names(await guest.call("GET", "/v1/files/list?path=/small"))).toEqual(["/small/a"]);
  });
});
