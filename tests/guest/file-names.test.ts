// Names that are not UTF-8, versions of files, and what is no file of any disk.
import { mkdirSync, readdirSync, readFileSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Answer } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isRoot, startGuestAgent } from "./guest-fixture.ts";

let guest: GuestFixture;
beforeAll(async () => {
  if (isRoot) guest = await startGuestAgent();
});
afterAll(() => guest?.close());

const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
const call = (
  method: string,
  path: string,
  options: { raw?: string; headers?: Record<string, string>; body?: object } = {},
): Promise<Answer> => guest.call(method, path, options);

describe.skipIf(!isRoot)("a name that is not UTF-8", () => {
  it("is reached by its bytes, percent-encoded, on every route", async () => {
    const path = "/odd/caf%E9%20%FF/d%25";
    expect((await call("POST", `/v1/files?path=${path}`, { raw: "content" })).json).toMatchObject({
      name: "d%",
      path: "/odd/caf\ufffd \ufffd/d%",
      path_encoded: path,
      size: 7,
    });
    expect(readdirSync(onDisk("odd"), "buffer")).toEqual([Buffer.from("caf\xe9 \xff", "latin1")]);
    const { json } = await call("GET", "/v1/files/list?path=/odd&depth=2");
    const entries = json["entries"] as { path_encoded: string }[];
    expect(entries.map((entry) => entry.path_encoded)).toEqual(["/odd/caf%E9%20%FF", path]);
    // What an answer says is what a request takes.
    for (const { path_encoded } of entries) {
      expect((await call("GET", `/v1/files/stat?path=${path_encoded}`)).json).toMatchObject({ path_encoded });
      expect((await call("GET", `/v1/files/exists?path=${path_encoded}`)).json).toMatchObject({
        exists: true,
      });
    }
    expect((await call("GET", `/v1/files?path=${path}`)).text).toBe("content");
    expect((await call("GET", "/v1/files/list?path=/odd/caf%E9+%FF")).json).toMatchObject({
      path_encoded: "/odd/caf%E9%20%FF",
      entries: [{ path_encoded: path }],
    });
    const move = { source_encoded: path, destination_encoded: "/odd/%80" };
    expect((await call("POST", "/v1/files/move", { body: move })).json).toMatchObject({
      path_encoded: "/odd/%80",
    });
    const made = { path_encoded: "/odd/%81/%82", parents: true };
    expect((await call("POST", "/v1/files/mkdir", { body: made })).json).toMatchObject({
      path_encoded: "/odd/%81/%82",
      is_dir: true,
    });
    expect(await call("GET", "/v1/files/archive?path=/odd/%81")).toMatchObject({ status: 200 });
    expect((await call("GET", "/v1/files/list?path=/odd/%83")).json["message"]).toContain(
      "path: /odd/\ufffd",
    );
    expect((await call("DELETE", "/v1/files?path=/odd/%80")).json).toEqual({ ok: true });
    expect((await call("DELETE", "/v1/files?path=/odd/%81&recursive=true")).json).toEqual({ ok: true });
    expect(readdirSync(onDisk("odd"), "buffer")).toHaveLength(1);
  });

  it("is told of a link's target too, and of no other entry", async () => {
    await guest.exec({
      cmd: ["python3", "-c", "import os; os.makedirs('/odd/l'); os.symlink(b'\\xfe', '/odd/l/k')"],
    });
    const stat = (await call("GET", "/v1/files/stat?path=/odd/l/k")).json;
    expect(stat).toMatchObject({ symlink_target: "\ufffd", symlink_target_encoded: "%FE" });
    expect(stat).not.toHaveProperty("path_encoded");
  });

  it.each([
    [{ source: "/a", source_encoded: "/a", destination: "/b" }, "source and source_encoded"],
    [{ source_encoded: "/a%f", destination: "/b" }, "source_encoded"],
    [{ source_encoded: "a", destination: "/b" }, "source_encoded"],
    [{ source: "/a", destination_encoded: "/%00" }, "destination_encoded"],
  ])("is refused where it is ambiguous or none: %j", async (body, named) => {
    const answer = await call("POST", "/v1/files/move", { body });
    expect(answer).toMatchObject({ status: 400, json: { message: expect.stringContaining(named) } });
  });
});

describe.skipIf(!isRoot)("a version of a file", () => {
  const of = async (method = "GET", headers: Record<string, string> = {}): Promise<Answer> =>
    call(method, "/v1/files?path=/version", { headers });
  it("is told by HEAD as by GET, and spares what the client has", async () => {
    await call("POST", "/v1/files?path=/version", { raw: "first" });
    utimesSync(onDisk("version"), 1_000_000_000, 1_000_000_000);
    const get = await of();
    const head = await of("HEAD");
    expect(head).toMatchObject({ status: 200, text: "" });
    for (const name of ["content-length", "content-type", "accept-ranges", "etag", "last-modified"])
      expect([name, head.headers[name]]).toEqual([name, get.headers[name]]);
    expect(head.headers).toMatchObject({
      "content-length": "5",
      "last-modified": "Sun, 09 Sep 2001 01:46:40 GMT",
      etag: expect.stringMatching(/^"[\w-]+"$/),
    });
    const etag = head.headers["etag"] as string;
    for (const names of [etag, `W/${etag}`, `"x", ${etag}`, "*"]) {
      for (const method of ["GET", "HEAD"])
        expect(await of(method, { "if-none-match": names })).toMatchObject({ status: 304, text: "" });
    }
    expect(await of("GET", { "if-none-match": '"x"' })).toMatchObject({ status: 200, text: "first" });
    expect(await of("GET", { range: "bytes=1-2", "if-range": etag })).toMatchObject({
      status: 206,
      text: "ir",
    });
    expect(await of("GET", { range: "bytes=1-2", "if-range": '"x"' })).toMatchObject({ status: 200 });
  });

  it("is another after every change, in place too", async () => {
    const seen = new Set<unknown>();
    for (const change of [
      () => call("POST", "/v1/files?path=/version", { raw: "same!" }),
      () => call("POST", "/v1/files?path=/version", { raw: "same!" }),
      () => guest.exec({ cmd: ["sh", "-c", "printf other > /version"] }),
      () =>
        guest.exec({ cmd: ["sh", "-c", "printf third > /v && touch -d @1000000000 /v && mv /v /version"] }),
    ]) {
      await change();
      seen.add((await of("HEAD")).headers["etag"]);
    }
    expect(seen.size).toBe(4);
  });

  it("is none where the system makes the content up; HEAD fails as GET does", async () => {
    const { headers } = await call("HEAD", "/v1/files?path=/proc/self/status");
    expect(headers).not.toHaveProperty("etag");
    for (const [path, status] of [
      ["/none", 404],
      ["/etc", 400],
      ["relative", 400],
    ] as const)
      expect(await call("HEAD", `/v1/files?path=${path}`)).toMatchObject({ status, text: "" });
    expect(await call("PATCH", "/v1/files?path=/x")).toMatchObject({
      status: 405,
      headers: { allow: expect.stringContaining("HEAD") },
    });
  });

  it("may be of any time", async () => {
    const script = "touch -d @99999999999999 /run/late; touch -d @-99999999999999 /run/early";
    await guest.exec({ cmd: ["sh", "-c", script] });
    for (const name of ["late", "early"]) {
      expect((await call("GET", `/v1/files/stat?path=/run/${name}`)).json).toMatchObject({
        modified_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
      });
      expect(await call("HEAD", `/v1/files?path=/run/${name}`)).toMatchObject({ status: 200 });
    }
    expect(await call("GET", "/v1/files/list?path=/run")).toMatchObject({ status: 200 });
  });
});

describe.skipIf(!isRoot)("what is no file of a disk", () => {
  it("is the caller's mistake, whatever the system says of it", async () => {
    for (const path of ["/proc/1/mem", "/proc/self/mem", "/proc/1/attr/current", "/proc/self/clear_refs"]) {
      const answer = await call("GET", `/v1/files?path=${path}`);
      expect([path, answer.status < 500]).toEqual([path, true]);
    }
    expect(await call("GET", "/v1/files?path=/proc/1/mem")).toMatchObject({
      status: 400,
      json: { code: "invalid_argument", message: expect.stringContaining("/proc/1/mem") },
    });
    for (const path of ["/proc/x", "/proc/1/y", "/sys/x", "/proc/self/comm", "/dev/pts/x"]) {
      const answer = await call("POST", `/v1/files?path=${path}`, { raw: "x" });
      expect([path, answer.status >= 400 && answer.status < 500]).toEqual([path, true]);
    }
  });

  it("says that a socket stays where it is; in a tree it is left out", async () => {
    mkdirSync(onDisk("sockets"));
    writeFileSync(onDisk("sockets/file"), "x");
    const bind = "import socket; socket.socket(socket.AF_UNIX).bind('/sockets/s')";
    await guest.exec({ cmd: ["python3", "-c", bind] });
    const answer = await call("POST", "/v1/files/move", {
      body: { source: "/sockets/s", destination: "/run/s" },
    });
    expect(answer).toMatchObject({
      status: 409,
      json: { message: "source: /sockets/s is a socket, which cannot be moved to another file system" },
    });
    expect((await call("GET", "/v1/files/exists?path=/sockets/s")).json).toMatchObject({ exists: true });
    await call("POST", "/v1/files/move", { body: { source: "/sockets", destination: "/run/sockets" } });
    expect((await call("GET", "/v1/files?path=/run/sockets/file")).text).toBe("x");
    expect(readFileSync("/proc/self/comm", "utf8")).not.toBe("");
  });
});
