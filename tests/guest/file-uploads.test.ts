// Streamed writes: of any size, in one step, with what the headers say; and nothing of one that does not come to its end.
import { createHash } from "node:crypto";
import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { text as textOf } from "node:stream/consumers";
import { limits } from "@cloche/protocol";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Answer, token } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isRoot, maxProcesses, startGuestAgent, until } from "./guest-fixture.ts";

let guest: GuestFixture;
beforeAll(async () => {
  if (isRoot) guest = await startGuestAgent();
});
afterAll(() => guest?.close());

const q = (path: string, more = ""): string => `/v1/files?path=${encodeURIComponent(path)}${more}`;
const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
const put = (path: string, raw: string | Buffer, headers: Record<string, string> = {}): Promise<Answer> =>
  guest.call("PUT", q(path), { raw, headers });
const append = (path: string, raw: string, headers: Record<string, string> = {}): Promise<Answer> =>
  guest.call("PUT", q(path, "&append=true"), { raw, headers });
const sha256 = (data: string | Buffer): string => createHash("sha256").update(data).digest("hex");

/** What of ours lies on the disk, by whatever way it could have been left. */
function leftovers(directory = onDisk("")): string[] {
  return readdirSync(directory, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.name.startsWith(".cloche-tmp-") && entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}

describe.skipIf(!isRoot)("streamed writes", () => {
  it("take any size, make parents and put the file in place whole", async () => {
    const bytes = Buffer.alloc(9 * 1_048_576 + 17, "0123456789");
    const answer = await put("/up/load/big", bytes, { "transfer-encoding": "chunked" });
    expect(answer).toMatchObject({
      status: 200,
      json: { path: "/up/load/big", size: bytes.length, permissions: "0644", owner: "root", user: "root" },
    });
    expect(answer.json["mtime"]).toBe(answer.json["modified_at"]);
    expect(readFileSync(onDisk("up/load/big")).equals(bytes)).toBe(true);
    expect((await put("/up/load/big", "")).json).toMatchObject({ size: 0 });
    expect(leftovers()).toEqual([]);
  });

  it("give it the extended attributes that the header names, and a later write none", async () => {
    const attributes = { "user.colour": "Z3JlZW4=", "user.empty": "" };
    const headers = { "x-file-attributes": JSON.stringify(attributes), "x-file-owner": "ann" };
    const told = async (path: string, more = ""): Promise<unknown> =>
      (await guest.call("GET", `/v1/files/stat?path=${path}&attributes=true${more}`)).json["attributes"];
    for (const method of ["PUT", "POST"]) {
      const path = `/attributed-${method}`;
      const written = await guest.call(method, q(path), { raw: "x", headers });
      expect(written).toMatchObject({ status: 200, json: { attributes, owner: "ann" } });
      expect(await told(path)).toEqual(attributes);
    }
    symlinkSync("attributed-PUT", onDisk("to-attributed"));
    expect([await told("/to-attributed"), await told("/to-attributed", "&follow=true")]).toEqual([
      {},
      attributes,
    ]);
    const listed = await guest.call("GET", "/v1/files/list?path=/&attributes=true");
    const entries = listed.json["entries"] as { name: string; attributes: unknown }[];
    expect(entries.find(({ name }) => name === "attributed-POST")?.attributes).toEqual(attributes);
    expect(entries.find(({ name }) => name === "etc")?.attributes).toEqual({});
    await put("/attributed-PUT", "y");
    expect(await told("/attributed-PUT")).toEqual({});
  });

  it.each([
    ["no JSON", "user.note=1"],
    ["a list", "[]"],
    ["another's name", '{"security.capability":""}'],
    ["a name that is the prefix", '{"user.":""}'],
    ["what is no base64", '{"user.note":"a"}'],
    ["a number", '{"user.note":1}'],
    ["a name too long", JSON.stringify({ [`user.${"n".repeat(251)}`]: "" })],
  ])("refuse attributes of %s and write nothing", async (_what, header) => {
    const answer = await put("/no-attributes", "x", { "x-file-attributes": header });
    expect(answer.status).toBe(400);
    expect(answer.json["message"]).toContain("x-file-attributes");
    expect(existsSync(onDisk("no-attributes"))).toBe(false);
  });

  it("refuse more attributes than a disk keeps of a file, and take as many as it does", async () => {
    const header = (bytes: number): Record<string, string> => {
      const names = Array.from({ length: 100 }, (_none, at) => `user.${String(at).padStart(4, "0")}`);
      const each = Math.floor(bytes / names.length) - 29;
      const value = Buffer.alloc(each, "v").toString("base64");
      return { "x-file-attributes": JSON.stringify(Object.fromEntries(names.map((name) => [name, value]))) };
    };
    expect(await put("/many-attributes", "x", header(limits.fileAttributesBytes))).toMatchObject({
      status: 200,
    });
    const { json } = await guest.call("GET", "/v1/files/stat?path=/many-attributes&attributes=true");
    expect(Object.keys(json["attributes"] as object)).toHaveLength(100);
    const more = await put("/many-attributes", "y", header(limits.fileAttributesBytes + 100));
    expect(more.status).toBe(413);
    expect(readFileSync(onDisk("many-attributes"), "utf8")).toBe("x");
    expect(leftovers()).toEqual([]);
  });

  it("give it the mode, the owner and the group that the headers name", async () => {
    const headers = { "x-file-mode": "4710", "x-file-owner": "ann", "x-file-group": "2000" };
    for (const method of ["PUT", "POST"]) {
      const answer = await guest.call(method, q(`/owned-${method}`), { raw: "x", headers });
      expect(answer.json).toMatchObject({ permissions: "4710", owner: "ann", group: "crew" });
    }
    // Kept where the next one does not say.
    expect((await put("/owned-PUT", "y")).json).toMatchObject({ permissions: "4710", owner: "ann" });
    expect((await put("/owned-PUT", "y", { "x-file-group": "root" })).json).toMatchObject({
      owner: "ann",
      group: "root",
    });
    for (const [header, value] of [
      ["x-file-owner", "nobody-here"],
      ["x-file-group", "nobody-here"],
      ["x-file-owner", "ann:crew"],
      ["x-file-mode", "rwx"],
    ] as const) {
      const refused = await put("/not-made", "x", { [header]: value });
      expect(refused).toMatchObject({ status: 400, json: { code: "invalid_argument" } });
      expect(refused.json["message"]).toContain(header);
    }
    expect(existsSync(onDisk("not-made"))).toBe(false);
  });

  it("change nothing where the body is not the one that x-content-sha256 names", async () => {
    for (const method of ["PUT", "POST"]) {
      const raw = `content of ${method}`;
      const right = { "x-content-sha256": sha256(raw).toUpperCase() };
      expect((await guest.call(method, q("/hashed"), { raw, headers: right })).status).toBe(200);
      const wrong = { "x-content-sha256": sha256("something else") };
      const refused = await guest.call(method, q("/hashed"), { raw: "other", headers: wrong });
      expect(refused).toMatchObject({ status: 400, json: { code: "invalid_argument" } });
      expect(refused.json["message"]).toContain("x-content-sha256");
      expect(readFileSync(onDisk("hashed"), "utf8")).toBe(raw);
    }
    expect((await put("/hashed", "x", { "x-content-sha256": "abc" })).status).toBe(400);
    expect(leftovers()).toEqual([]);
  });

  it("append in place, to what is there or to nothing", async () => {
    expect((await append("/log", "one\n")).json).toMatchObject({ size: 4 });
    const inode = statSync(onDisk("log")).ino;
    chownSync(onDisk("log"), 1000, 2000);
    expect((await append("/log", "two\n", { "x-file-mode": "0600" })).json).toMatchObject({
      size: 8,
      permissions: "0600",
      owner: "ann",
    });
    const wrong = { "x-content-sha256": sha256("else") };
    expect((await append("/log", "three\n", wrong)).status).toBe(400);
    expect(readFileSync(onDisk("log"), "utf8")).toBe("one\ntwo\n");
    expect(statSync(onDisk("log")).ino).toBe(inode);
    // All of them, whoever comes first to a file that is not there yet.
    const lines = Array.from({ length: 20 }, (_, index) => `line ${index}\n`);
    await Promise.all(lines.map((line) => append("/many", line)));
    expect(readFileSync(onDisk("many"), "utf8").split("\n").filter(Boolean).sort()).toEqual(
      lines.map((line) => line.trim()).sort(),
    );
    expect(leftovers()).toEqual([]);
  });

  it("leave nothing and change nothing when they are cut off, at any boundary", async () => {
    writeFileSync(onDisk("cut"), "whole");
    const head = `PUT ${q("/cut")} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\n`;
    const told = `${head}content-length: 700000\r\n\r\n`;
    // From 1 MiB on the agent opens the file itself.
    const large = `${head}content-length: 4000000\r\n\r\n`;
    const chunked = `${head}transfer-encoding: chunked\r\n\r\n`;
    const chunk = `${(300_000).toString(16)}\r\n${"c".repeat(300_000)}\r\n`;
    const cuts = [
      head,
      told,
      `${told}x`,
      told + "x".repeat(262_144),
      told + "x".repeat(699_999),
      ...[1_048_575, 1_048_576, 1_310_720, 3_999_999].map((bytes) => large + "x".repeat(bytes)),
      chunked,
      `${chunked}4`,
      `${chunked}4\r\n`,
      `${chunked}4\r\nabc`,
      `${chunked}4\r\nabcd`,
      `${chunked}4\r\nabcd\r\n`,
      chunked + chunk,
      `${chunked + chunk}0\r\n`,
      `${chunked + chunk}zz\r\n`,
    ];
    for (const cut of cuts) {
      const socket = connect(guest.port, "127.0.0.1");
      socket.on("error", () => undefined);
      socket.resume();
      await new Promise((resolve) => socket.write(cut, resolve));
      socket.destroy();
    }
    await until("what was begun is gone", () => leftovers().length === 0);
    // None of them ended only after that.
    expect((await put("/after", "x")).status).toBe(200);
    expect(readFileSync(onDisk("cut"), "utf8")).toBe("whole");
    expect(leftovers()).toEqual([]);
  });

  it("hold nothing of the disk once the guest is closed, however large they are", async () => {
    const held = (): string[] =>
      readdirSync("/proc/self/fd")
        .map((name) => (existsSync(`/proc/self/fd/${name}`) ? readlinkSync(`/proc/self/fd/${name}`) : ""))
        .filter((path) => path.endsWith("/large-one") || path.includes("/.cloche-tmp-"));
    writeFileSync(onDisk("large-one"), Buffer.alloc(32 * 1_048_576));
    const heads = [`PUT ${q("/cut")}`, `GET ${q("/large-one")}`].map(
      (line) => `${line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\n`,
    );
    const sockets = heads.map(() => connect(guest.port, "127.0.0.1").on("error", () => undefined));
    sockets[0]?.write(`${heads[0]}content-length: 4000000\r\n\r\n${"x".repeat(2_500_000)}`);
    sockets[1]?.write(`${heads[1]}\r\n`);
    await until("the agent has both files open itself", () => held().length === 2);
    await guest.native.detach();
    expect(held()).toEqual([]);
    for (const socket of sockets) socket.destroy();
    await guest.native.attach(guest.diskPath, { maxProcesses });
    expect(
      (await guest.call("GET", q("/large-one"), { headers: { range: "bytes=1048570-3000000" } })).status,
    ).toBe(206);
    expect(leftovers()).toEqual([]);
  });

  it("take no word from trailers, and nothing of a body that is cut in them", async () => {
    const head =
      `PUT ${q("/trailed")} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\nconnection: close\r\n` +
      "transfer-encoding: chunked\r\ntrailer: x-file-mode\r\n\r\n";
    const send = async (text: string): Promise<string> => {
      const socket = connect(guest.port, "127.0.0.1");
      socket.end(text);
      return textOf(socket);
    };
    const body = "5\r\nhello\r\n0\r\nx-file-mode: 4777\r\nx-content-sha256: 00\r\n";
    await send(head + body);
    expect(existsSync(onDisk("trailed"))).toBe(false);
    expect(await send(`${head}${body}\r\n`)).toMatch(/^HTTP\/1.1 200 /);
    expect(readFileSync(onDisk("trailed"), "utf8")).toBe("hello");
    expect(statSync(onDisk("trailed")).mode & 0o7777).toBe(0o644);
    await until("what was begun is gone", () => leftovers().length === 0);
  });

  it("are refused where no file can be, and say so before they are whole", async () => {
    mkdirSync(onDisk("a-directory"));
    writeFileSync(onDisk("a-file"), "x");
    symlinkSync("round", onDisk("round"));
    for (const [path, status] of [
      ["/a-directory", 400],
      ["/a-directory/", 400],
      ["/a-file/below", 400],
      ["/round", 400],
      ["relative", 400],
      [`/${"n".repeat(300)}`, 400],
      ["/dev/null", 400],
    ] as const)
      expect(await put(path, "x"), path).toMatchObject({ status });
    expect((await guest.call("PUT", q("/a-file", "&append=perhaps"), { raw: "x" })).status).toBe(400);
  });

  it("go into memory as well, beside their target, and follow links to what is not there yet", async () => {
    expect((await put("/dev/shm/upload", "in memory")).json).toMatchObject({ size: 9 });
    expect((await guest.exec({ cmd: ["sh", "-c", "cat /dev/shm/upload; ls -A /dev/shm"] })).stdout).toBe(
      "in memoryupload\n",
    );
    symlinkSync("up/target-of-upload", onDisk("dangling"));
    expect((await put("/dangling", "through")).status).toBe(200);
    expect(readFileSync(onDisk("up/target-of-upload"), "utf8")).toBe("through");
  });

  it("are as many at once as the limit says", async () => {
    const sockets = Array.from({ length: limits.uploads + 1 }, () => {
      const socket = connect(guest.port, "127.0.0.1");
      socket.write(
        `PUT ${q("/held")} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\ncontent-length: 9\r\n\r\nheld`,
      );
      return socket;
    });
    const refused = Promise.withResolvers<string>();
    for (const socket of sockets) socket.on("data", (data) => refused.resolve(data.toString()));
    expect(await refused.promise).toMatch(/^HTTP\/1.1 429 /);
    for (const socket of sockets) socket.destroy();
    await until("there is room again", async () => (await put("/held", "x")).status === 200);
    await until("what was begun is gone", () => leftovers().length === 0);
  });
});
