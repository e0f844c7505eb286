import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
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

  it("lists what links lead to, when asked", async () => {
    mkdirSync(onDisk("targets/dir"), { recursive: true });
    await write("/targets/file", "x");
    const links = {
      "to-dir": "dir",
      "to-file": "file",
      "to-itself": "to-itself",
      "to-nothing": "gone",
      up: "to-dir",
    };
    for (const [name, target] of Object.entries(links)) symlinkSync(target, onDisk(`targets/${name}`));
    const list = async (more = ""): Promise<unknown[]> => {
      const { json } = await guest.call("GET", `/v1/files/list?${q("/targets", more)}`);
      const entries = json["entries"] as { name: string; target_type?: string }[];
      return entries.map(({ name, target_type }) => [name, target_type]);
    };
    expect(await list("&targets=true")).toEqual([
      ["dir", undefined],
      ["file", undefined],
      ["to-dir", "directory"],
      ["to-file", "file"],
      ["to-itself", ""],
      ["to-nothing", ""],
      ["up", "directory"],
    ]);
    expect(await list()).toContainEqual(["to-dir", undefined]);
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
    ["half an escape", "path=/a%4"],
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
    expect(await remove("/run", "&recursive=true")).toMatchObject({ status: 409 });
    mkdirSync(onDisk("hollow"));
    expect((await remove("/hollow")).json).toEqual({ ok: true });
  });

  it("makes what it writes out of sight: a watcher sees the new name only", async () => {
    const watcher = `import ctypes,os,struct,sys
c=ctypes.CDLL(None); fd=c.inotify_init(); os.makedirs('/watched'); c.inotify_add_watch(fd,b'/watched',0xfff)
print('ready',flush=True); seen=[]
while 'end' not in seen:
  data=os.read(fd,65536); at=0
  while at<len(data):
    _,mask,_,size=struct.unpack_from('iIII',data,at); name=data[at+16:at+16+size].rstrip(b'\\0').decode(); at+=16+size
    if name: seen.append(name)
print(sorted(set(seen)))`;
    const watching = guest.exec({ cmd: ["python3", "-c", watcher] });
    await until("the folder is watched", () => existsSync(onDisk("watched")));
    await guest.exec({ cmd: ["sh", "-c", "mkdir -p /dev/shm/moving/in; echo x > /dev/shm/moving/in/x"] });
    await write("/watched/file", "one");
    await write("/watched/file", "two");
    const body = { source: "/dev/shm/moving", destination: "/watched/moved" };
    expect(await guest.call("POST", "/v1/files/move", { body })).toMatchObject({ status: 200 });
    await write("/watched/end", "");
    expect((await watching).stdout.split("\n")[1]).toBe("['end', 'file', 'moved']");
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
    expect((await move("/move", "/run/moved")).json).toMatchObject({ path: "/run/moved", is_dir: true });
    expect(existsSync(onDisk("move"))).toBe(false);
    const { json } = await guest.call("GET", "/v1/files/list?path=/run/moved");
    expect(json["entries"]).toMatchObject([
      { name: "link", symlink_target: "../etc" },
      { name: "other", owner: "ann", permissions: "0751", size: 7 },
      { name: "sub", is_dir: true },
    ]);
    expect((await move("/run/moved/other", "/keep")).json).toMatchObject({ owner: "ann" });
    expect(await move("/run/moved", "/keep")).toMatchObject({ status: 400 });
    expect(await move("a", "/b")).toMatchObject({ status: 400 });
  });
});
