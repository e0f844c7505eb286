import { execFileSync } from "node:child_process";
import {
  closeSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { connect } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { abortExecPath, limits, portTunnelPath } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  type AgentFixture,
  bootstrapSecret,
  controlSecret,
  startAgent,
  token,
} from "../testing/agent-fixture.ts";
import { channelKeyOf } from "../auth/channel-keys.ts";
import { deletedButOpen } from "../snapshot/deleted-files.ts";

let fixture: AgentFixture;
beforeEach(async () => {
  fixture = await startAgent();
});
afterEach(() => fixture.close());

describe("an agent that is no sandbox's yet", () => {
  it("tells without auth only that it is alive", async () => {
    expect(await fixture.call("GET", "/healthz", { authorization: "" })).toMatchObject({
      status: 200,
      text: '{"ok":true}',
    });
  });

  it("answers 503 on the data plane, and 401 to control calls without its secret", async () => {
    expect(await fixture.call("GET", "/v1/store/a")).toMatchObject({
      status: 503,
      json: { code: "unavailable" },
    });
    for (const secret of ["wrong", token()]) {
      expect(await fixture.control("GetActivity", {}, secret)).toMatchObject({
        status: 401,
        headers: { "www-authenticate": "Bearer" },
      });
    }
  });

  it("refuses an Assign that names no sandbox or secret, and stays as it is", async () => {
    for (const changes of [
      { sandboxId: "" },
      { controlSecret: "" },
      { hostname: "a b" },
      { env: { a: 1 } },
    ]) {
      expect(await fixture.assign(changes)).toMatchObject({
        status: 400,
        json: { code: "invalid_argument" },
      });
    }
    expect((await fixture.assign()).status).toBe(200);
  });
});

describe("an assigned agent", () => {
  beforeEach(async () => {
    const answer = await fixture.assign({
      hostname: "box",
      renewIdentity: true,
      dnsServers: ["10.1.2.3"],
      entropyBase64: "AAAA",
    });
    expect(answer).toMatchObject({ status: 200, json: { startedServices: [], failedServices: [] } });
  });

  it("has its identity in its tree", () => {
    const file = (path: string): string => readFileSync(join(fixture.diskPath, "fs", path), "utf8");
    expect(file("/etc/machine-id")).toMatch(/^[0-9a-f]{32}\n$/);
    expect(file("/etc/hostname")).toBe("box\n");
    expect(file("/etc/hosts")).toContain("box");
    expect(file("/etc/resolv.conf")).toBe("nameserver 10.1.2.3\n");
  });

  it("takes its next control secret and this sandbox's tokens only", async () => {
    expect((await fixture.control("GetActivity", {}, bootstrapSecret)).status).toBe(401);
    expect((await fixture.control("GetActivity")).status).toBe(200);
    expect((await fixture.call("GET", "/v1/store")).status).toBe(200);
    for (const authorization of [
      "",
      "Bearer",
      "Basic abc",
      `Bearer ${controlSecret}`,
      `Bearer ${token({ aud: "sbx-b" })}`,
    ]) {
      expect(await fixture.call("GET", "/v1/store", { authorization })).toMatchObject({
        status: 401,
        headers: { "www-authenticate": "Bearer" },
        json: { code: "unauthenticated" },
      });
    }
    expect((await fixture.call("POST", abortExecPath, { authorization: "" })).status).toBe(401);
  });

  it("becomes another sandbox, whose source's tokens are no longer good", async () => {
    const other = "sbx-bbbbbbbbbbbbbbbbbbbb";
    expect((await fixture.assign({ sandboxId: other, controlSecret: "third" }, controlSecret)).status).toBe(
      200,
    );
    expect((await fixture.call("GET", "/v1/store")).status).toBe(401);
    const claims = { aud: other, sandbox_id: other };
    const before = `Bearer ${token(claims)}`;
    expect((await fixture.call("GET", "/v1/store", { authorization: before })).status).toBe(401);
    const authorization = `Bearer ${token(claims, {}, channelKeyOf("third"))}`;
    expect((await fixture.call("GET", "/v1/store", { authorization })).status).toBe(200);
  });

  it("answers Assign while its files are written; the data plane and the host's next call wait for them", async () => {
    const { guest } = fixture.spawner;
    const { files } = guest;
    const gate = Promise.withResolvers<void>();
    const written: string[] = [];
    const put: typeof files.put = async (path, ...rest) => {
      await gate.promise;
      written.push(String(path));
      return files.put(path, ...rest);
    };
    Object.defineProperty(guest, "files", { value: { ...files, put } });
    const other = "sbx-bbbbbbbbbbbbbbbbbbbb";
    const changes = { sandboxId: other, hostname: "other", renewIdentity: true, dnsServers: ["10.1.2.3"] };
    expect((await fixture.assign({ ...changes, controlSecret: "third" }, controlSecret)).status).toBe(200);
    const seen: string[] = [];
    const waiting = [
      fixture.call("GET", "/v1/store", {
        authorization: `Bearer ${token({ aud: other, sandbox_id: other }, {}, channelKeyOf("third"))}`,
      }),
      fixture.control("PrepareCheckpoint", {}, "third"),
    ].map((answer) => answer.then(({ status }) => seen.push(`${status} after ${written.length} files`)));
    expect((await fixture.control("GetActivity", {}, "third")).status).toBe(200);
    expect((await fixture.call("GET", "/healthz", { authorization: "" })).status).toBe(200);
    expect(seen).toEqual([]);
    gate.resolve();
    await Promise.all(waiting);
    // The name servers are those that it has already.
    expect(written.toSorted()).toEqual(["/etc/hostname", "/etc/hosts", "/etc/machine-id"]);
    expect(seen).toEqual(["200 after 3 files", "200 after 3 files"]);
  });

  it("takes no token of an issuer that is no longer the gateway's", async () => {
    const issuer = "https://elsewhere.test";
    expect((await fixture.assign({ issuer }, controlSecret)).status).toBe(200);
    expect((await fixture.call("GET", "/v1/store")).status).toBe(401);
  });

  it("sets, gets, lists and deletes keys", async () => {
    expect(
      await fixture.call("PUT", "/v1/store/a%2Fb/c", { body: { value: { n: [1, null] } } }),
    ).toMatchObject({ status: 200, json: { ok: true, expires_at: null } });
    expect((await fixture.call("GET", "/v1/store/a/b/c")).json).toEqual({
      value: { n: [1, null] },
      expires_at: null,
    });
    expect(
      (await fixture.call("PUT", "/v1/store/null", { raw: '{"value": null, "ttl_seconds": 60}' })).json[
        "expires_at"
      ],
    ).toMatch(/^\d{4}-.*\.\d{3}Z$/);
    expect((await fixture.call("GET", "/v1/store/null")).json["value"]).toBeNull();
    expect(
      (await fixture.call("PUT", "/v1/store/big", { raw: '{"value": 12345678901234567890}' })).status,
    ).toBe(200);
    expect((await fixture.call("GET", "/v1/store/big")).text).toContain('"value":12345678901234567890,');
    const page = await fixture.call("GET", "/v1/store?limit=2");
    expect(page.json).toMatchObject({ keys: ["a/b/c", "big"], truncated: true });
    expect(
      (await fixture.call("GET", `/v1/store?limit=2&cursor=${String(page.json["cursor"])}`)).json,
    ).toEqual({ keys: ["null"], truncated: false, cursor: "" });
    expect((await fixture.call("DELETE", "/v1/store/null")).json).toEqual({ deleted: true, ok: true });
    expect((await fixture.call("DELETE", "/v1/store/null")).json).toEqual({ deleted: false, ok: true });
    expect(await fixture.call("GET", "/v1/store/null")).toMatchObject({
      status: 404,
      json: { code: "not_found" },
    });
  });

  it("applies a batch, and names the operation that is wrong without applying any", async () => {
    const operations = [
      { op: "set", key: "x", value: 1 },
      { op: "set", key: "y", value: 2, ttl_seconds: 5 },
      { op: "delete", key: "x" },
    ];
    expect(await fixture.call("POST", "/v1/store/batch", { body: { operations } })).toMatchObject({
      status: 200,
      json: { applied: 3, ok: true },
    });
    expect((await fixture.call("PUT", "/v1/store/batch", { body: { value: 1 } })).status).toBe(200);
    const wrong = await fixture.call("POST", "/v1/store/batch", {
      body: {
        operations: [
          { op: "set", key: "z", value: 1 },
          { op: "set", key: "q" },
        ],
      },
    });
    expect(wrong.status).toBe(400);
    expect(wrong.json["message"]).toContain("operations[1].value");
    expect((await fixture.call("GET", "/v1/store/z")).status).toBe(404);
  });

  const refused: [string, string, unknown, number][] = [
    ["PUT", "/v1/store/", { value: 1 }, 400],
    ["PUT", "/v1/store/.", { value: 1 }, 400],
    ["PUT", "/v1/store/%2e%2e", { value: 1 }, 400],
    ["PUT", "/v1/store/%ff", { value: 1 }, 400],
    ["PUT", "/v1/store/a", {}, 400],
    ["PUT", "/v1/store/a", undefined, 400],
    ["PUT", "/v1/store/a", [1], 400],
    ["PUT", "/v1/store/a", { value: 1, ttl_seconds: 0 }, 400],
    ["PUT", "/v1/store/a", { value: 1, ttl_seconds: 1.5 }, 400],
    ["PUT", "/v1/store/a", { value: 1, ttl_seconds: "1" }, 400],
    ["PUT", "/v1/store/a", { value: 1, ttl_seconds: 1e300 }, 400],
    ["PUT", `/v1/store/${"k".repeat(limits.storeKeyBytes + 1)}`, { value: 1 }, 413],
    ["PUT", "/v1/store/a", { value: "x".repeat(limits.storeValueBytes - 1) }, 413],
    ["PUT", "/v1/store/a", { value: "x".repeat(5 * limits.storeValueBytes) }, 413],
    ["PUT", "/v1/store/a", { value: 1, ttl_seconds: limits.storeTtlSeconds + 1 }, 400],
    ["GET", "/v1/store?limit=0", undefined, 400],
    ["GET", "/v1/store?limit=", undefined, 400],
    ["GET", `/v1/store?limit=${limits.storeListKeys + 1}`, undefined, 400],
    ["GET", "/v1/store?cursor=!", undefined, 400],
    ["POST", "/v1/store/batch", {}, 400],
    ["POST", "/v1/store/batch", { operations: {} }, 400],
    ["POST", "/v1/store/batch", { operations: ["x"] }, 400],
    ["POST", "/v1/store/batch", { operations: [{ op: "get", key: "a" }] }, 400],
    ["POST", "/v1/store/batch", { operations: [{ op: "delete" }] }, 400],
    ["POST", "/v1/store/batch", { operations: [{ op: "delete", key: "\ud800" }] }, 400],
    [
      "POST",
      "/v1/store/batch",
      { operations: Array.from({ length: 1_001 }, () => ({ op: "delete", key: "a" })) },
      413,
    ],
    [
      "POST",
      "/v1/store/batch",
      { operations: Array.from({ length: 10_000 }, () => ({ op: "delete", key: "a" })) },
      413,
    ],
  ];
  it.each(refused)("refuses %s %.40s with its status", async (method, path, body, status) => {
    const answer = await fixture.call(method, path, { body });
    expect(answer.status).toBe(status);
    expect(answer.json["message"]).toBeTypeOf("string");
  });

  it("takes a value and a key of exactly the limits", async () => {
    const path = `/v1/store/${"k".repeat(limits.storeKeyBytes)}`;
    const value = "x".repeat(limits.storeValueBytes - 2);
    expect((await fixture.call("PUT", path, { body: { value } })).status).toBe(200);
    expect((await fixture.call("GET", path)).json["value"]).toBe(value);
  });

  it("lets the disk go and takes it back as the host swaps it", async () => {
    await fixture.call("PUT", "/v1/store/a", { body: { value: "before" } });
    expect((await fixture.control("PrepareCheckpoint")).json).toEqual({ runningServices: [] });
    const file = join(fixture.diskPath, "cloche", "store.db");
    const checkpoint = readFileSync(file);
    await fixture.call("PUT", "/v1/store/a", { body: { value: "after" } });
    expect((await fixture.control("DetachDisk")).json).toEqual({ runningServices: [] });
    expect((await fixture.control("DetachDisk")).status).toBe(200);
    expect(existsSync(`${file}-wal`)).toBe(false);
    expect(await fixture.call("GET", "/v1/store/a")).toMatchObject({ status: 503 });
    expect((await fixture.control("PrepareCheckpoint")).status).toBe(503);
    rmSync(file);
    writeFileSync(file, checkpoint);
    expect((await fixture.control("AttachDisk")).json).toEqual({ startedServices: [], failedServices: [] });
    expect((await fixture.control("AttachDisk")).status).toBe(409);
    expect((await fixture.call("GET", "/v1/store/a")).json["value"]).toBe("before");
  });

  it("keeps a request that was let in before away from the disk after it was let go", async () => {
    const socket = connect(fixture.port, "127.0.0.1");
    let answer = "";
    socket.on("data", (chunk) => {
      answer += chunk.toString();
    });
    const body = '{"value":1}';
    const head = `authorization: Bearer ${token()}\r\ncontent-length: ${body.length}\r\nconnection: close`;
    socket.write(`PUT /v1/store/late HTTP/1.1\r\nhost: x\r\n${head}\r\n\r\n{`);
    while ((await fixture.control("GetActivity")).json["openRequests"] !== 1) continue;
    await fixture.control("DetachDisk");
    rmSync(join(fixture.diskPath, "cloche"), { recursive: true });
    socket.write(body.slice(1));
    await new Promise((resolve) => socket.once("close", resolve));
    expect(answer).toMatch(/^HTTP\/1.1 503/);
    expect(existsSync(join(fixture.diskPath, "cloche"))).toBe(false);
  });

  it("tells activity of requests but not of the host's own questions", async () => {
    const first = (await fixture.control("GetActivity")).json;
    expect(first).toMatchObject({ runningExecs: 0, openRequests: 0 });
    expect((await fixture.control("GetActivity")).json["lastActivityUnixMs"]).toBe(
      first["lastActivityUnixMs"],
    );
    await fixture.call("GET", "/v1/store");
    const second = (await fixture.control("GetActivity")).json;
    expect(Number(second["lastActivityUnixMs"])).toBeGreaterThanOrEqual(Number(first["lastActivityUnixMs"]));
    expect(second["cpuMs"]).toBeTypeOf("number");
  });

  it("finds files that are open but deleted", async () => {
    const path = join(fixture.diskPath, "gone");
    const open = openSync(path, "w");
    // Holes count: they go into an image as what they say.
    ftruncateSync(open, 5_000);
    const fifo = join(fixture.diskPath, "gone.fifo");
    execFileSync("mkfifo", [fifo]);
    const openFifo = openSync(fifo, "r+");
    rmSync(path);
    rmSync(fifo);
    // Of this process alone: others of the machine hold what they like.
    const proc = join(fixture.diskPath, "proc");
    mkdirSync(proc);
    symlinkSync("/proc/self", join(proc, String(process.pid)));
    const look = () => deletedButOpen(fixture.diskPath, proc);
    expect(look()).toEqual({ blockingPaths: [fifo], bytes: 5_000, paths: [path] });
    const { json } = await fixture.control("PrepareSnapshot");
    expect(json["blockingPaths"]).toContain(fifo);
    // It names so many, and others of this computer may have more.
    expect(json["deletedPaths"]).not.toEqual([]);
    expect(json["deletedBytes"]).toBeGreaterThanOrEqual(5_000);
    closeSync(open);
    closeSync(openFifo);
    expect(look()).toEqual({ blockingPaths: [], bytes: 0, paths: [] });
  });

  it("answers Shutdown and is without its disk then", async () => {
    expect((await fixture.control("Shutdown")).status).toBe(200);
    expect((await fixture.call("GET", "/v1/store")).status).toBe(503);
  });
});

describe("the port tunnel", () => {
  const upgrade = (port: number, target: string, headers: string): Promise<string> => {
    const { promise, resolve } = Promise.withResolvers<string>();
    const socket = connect(port, "127.0.0.1");
    let seen = "";
    socket.on("data", (chunk) => {
      seen += chunk.toString();
      if (seen.includes("101") && !seen.includes("ping")) socket.end("ping");
    });
    socket.on("close", () => resolve(seen));
    socket.write(`GET ${target} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n${headers}\r\n\r\n`);
    return promise;
  };

  it("carries bytes both ways, and refuses what it should", async () => {
    await fixture.assign();
    const echo = createServer((socket) => socket.pipe(socket));
    await new Promise<void>((resolve) => echo.listen(0, "127.0.0.1", resolve));
    const { port } = echo.address() as AddressInfo;
    const auth = `authorization: Bearer ${token({ port })}`;
    expect(
      await upgrade(fixture.port, `${portTunnelPath}${port}`, `upgrade: cloche-port\r\n${auth}`),
    ).toMatch(/101 [^]*ping$/);
    echo.close();
    expect(
      await upgrade(fixture.port, `${portTunnelPath}${port}`, `upgrade: cloche-port\r\n${auth}`),
    ).toMatch(/^HTTP\/1.1 503/);
    expect(
      await upgrade(
        fixture.port,
        `${portTunnelPath}0`,
        `upgrade: cloche-port\r\nauthorization: Bearer ${token({ port: 0 })}`,
      ),
    ).toMatch(/^HTTP\/1.1 400/);
    expect(await upgrade(fixture.port, `${portTunnelPath}${port}`, `upgrade: websocket\r\n${auth}`)).toMatch(
      /^HTTP\/1.1 400/,
    );
    const wrong = "upgrade: cloche-port\r\nauthorization: Bearer x";
    expect(await upgrade(fixture.port, `${portTunnelPath}${port}`, wrong)).toMatch(/^HTTP\/1.1 401/);
  });
});
