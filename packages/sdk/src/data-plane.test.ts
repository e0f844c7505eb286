import { expect, test, vi } from "vitest";
import { ClocheConnectionError } from "./errors.ts";
import { openDataPlane } from "./sandbox.ts";
import { TokenSource } from "./token-source.ts";
import { domain, FakeService, json } from "./testing/fake-service.ts";

test("a 401 brings one fresh token and one repetition", async () => {
  await using service = await FakeService.start();
  service.onData = ({ headers }, response) =>
    headers.authorization === "Bearer token-2"
      ? json(response, 200, { stdout: "hi" })
      : json(response, 401, { code: "unauthenticated", message: "expired" });
  const sandbox = await service.cloche().create();
  expect((await sandbox.exec(["echo", "hi"])).stdout).toBe("hi");
  expect(service.data.map(({ headers }) => headers.authorization)).toEqual([
    "Bearer token-1",
    "Bearer token-2",
  ]);
  service.onData = (_asked, response) => json(response, 401, { code: "unauthenticated", message: "no" });
  await expect(sandbox.exec(["true"])).rejects.toMatchObject({ status: 401, code: "unauthenticated" });
  expect(service.data).toHaveLength(4);
});

test("a token is renewed 30 seconds before it expires, once for many callers", async () => {
  let nowMs = 1_000_000;
  let issued = 0;
  const tokens = new TokenSource(
    async () => {
      issued += 1;
      await Promise.resolve();
      return { jwt: `t${issued}`, expires_at_unix: nowMs / 1000 + 60 };
    },
    undefined,
    () => nowMs,
  );
  expect(await Promise.all([tokens.get({}), tokens.get({})])).toEqual(["t1", "t1"]);
  nowMs += 29_000;
  expect(await tokens.get({})).toBe("t1");
  nowMs += 2_000;
  expect(await tokens.get({})).toBe("t2");
  expect(
    await Promise.all([tokens.replace("t2", {}), tokens.replace("t2", {}), tokens.replace("t1", {})]),
  ).toEqual(["t3", "t3", "t2"]);
});

test("while the gateway is away a token that is still good goes on being used", async () => {
  let nowMs = 0;
  const issue = vi.fn(() => Promise.reject(new Error("gateway is away")));
  const tokens = new TokenSource(issue, { jwt: "t", expires_at_unix: 20 }, () => nowMs);
  expect(await tokens.get({})).toBe("t");
  expect(issue).toHaveBeenCalledTimes(1);
  nowMs = 21_000;
  await expect(tokens.get({})).rejects.toThrow("gateway is away");
});

test("a data plane opens with nothing but a domain and tokens", async () => {
  await using service = await FakeService.start();
  const dataPlane = openDataPlane({
    domain,
    fetch: service.fetch,
    token: () => Promise.resolve({ jwt: "browser", expires_at_unix: Date.now() / 1000 + 100 }),
  });
  await dataPlane.services.list();
  expect(service.data[0]?.headers.authorization).toBe("Bearer browser");
});

test("exec sends the contract's fields and streams its events", async () => {
  await using service = await FakeService.start();
  const sandbox = await service.cloche().create();
  service.onData = (_asked, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(': hello\n\nevent: stdout\ndata: {"data":"a\\n"}\n\nevent: std');
    response.write(
      'err\r\ndata: {"data":"é"}\r\n\r\nevent: exit\ndata: {"exit_code":3,"ok":false,"duration_ms":5,"timed_out":false}\n\n',
    );
    response.end();
  };
  const events: unknown[] = [];
  for await (const event of sandbox.execStream(["sh", "-c", "x"], {
    dir: "/tmp",
    env: { A: "1" },
    stdin: "in",
    timeout_ms: 9,
    user: "nobody",
  }))
    events.push(event);
  expect(events).toEqual([
    { type: "stdout", data: "a\n" },
    { type: "stderr", data: "é" },
    { type: "exit", exit_code: 3, ok: false, duration_ms: 5, timed_out: false },
  ]);
  expect(JSON.parse(service.data[0]?.body ?? "")).toEqual({
    cmd: ["sh", "-c", "x"],
    dir: "/tmp",
    env: { A: "1" },
    stdin: "in",
    timeout_ms: 9,
    user: "nobody",
  });
  expect(service.data[0]?.headers.accept).toBe("text/event-stream");
});

test("a stream that ends before its exit, and one that ends in an error event, throw", async () => {
  await using service = await FakeService.start();
  const sandbox = await service.cloche().create();
  const drain = async (): Promise<void> => {
    for await (const event of sandbox.execStream(["x"])) void event;
  };
  service.onData = (_asked, response) => void response.end('event: stdout\ndata: {"data":"a"}\n\n');
  await expect(drain()).rejects.toBeInstanceOf(ClocheConnectionError);
  service.onData = (_asked, response) => void response.write("event: std", () => response.destroy());
  await expect(drain()).rejects.toBeInstanceOf(ClocheConnectionError);
  service.onData = (_asked, response) =>
    void response.end('event: error\ndata: {"code":"unavailable","message":"restored"}\n\n');
  await expect(drain()).rejects.toMatchObject({ code: "unavailable", message: "restored" });
});

test("a log is followed as it comes, to its end or until the connection breaks", async () => {
  await using service = await FakeService.start();
  const { services } = await service.cloche().create();
  const read = async (): Promise<string> => {
    let text = "";
    for await (const piece of services.followLogs("web", { tail: 2 })) text += piece;
    return text;
  };
  service.onData = (_asked, response) => void response.end("one\ntwo\n");
  expect(await read()).toBe("one\ntwo\n");
  expect(service.data.at(-1)?.url).toBe("/v1/services/web/logs?tail=2&follow=true");
  service.onData = (_asked, response) => void response.write("one", () => response.destroy());
  await expect(read()).rejects.toBeInstanceOf(ClocheConnectionError);
});

test("leaving a stream early closes its connection, so that the command is killed", async () => {
  await using service = await FakeService.start();
  const sandbox = await service.cloche().create();
  const closed = new Promise<void>((resolve) => {
    service.onData = (_asked, response) => {
      response.on("close", resolve);
      response.write('event: stdout\ndata: {"data":"a"}\n\n');
    };
  });
  for await (const event of sandbox.execStream(["yes"])) {
    expect(event).toEqual({ type: "stdout", data: "a" });
    break;
  }
  await closed;
});

test("an exec is never repeated, a read is", async () => {
  await using service = await FakeService.start();
  const sandbox = await service.cloche().create();
  let asked = 0;
  service.onData = (_asked, response) => {
    asked += 1;
    if (asked === 1) json(response, 503, { code: "unavailable", message: "busy" }, { "retry-after": "0" });
    else json(response, 200, { ok: true });
  };
  await expect(sandbox.exec(["true"])).rejects.toMatchObject({ code: "unavailable", retryAfterSeconds: 0 });
  asked = 0;
  expect(await sandbox.services.list().then(() => asked)).toBe(2);
});

test("files go to their routes", async () => {
  await using service = await FakeService.start();
  const { files } = await service.cloche().create();
  await files.write("/a b/ü", "text", { mode: "0755" });
  expect(service.data.at(-1)).toMatchObject({
    method: "POST",
    url: "/v1/files?path=%2Fa+b%2F%C3%BC",
    body: "text",
  });
  expect(service.data.at(-1)?.headers["x-file-mode"]).toBe("0755");
  await files.write("/s", new Blob(["blob"]).stream());
  expect(service.data.at(-1)).toMatchObject({ body: "blob" });
  service.onData = (_asked, response) => void response.end(Buffer.from([0, 255]));
  expect(await files.read("/x")).toEqual(new Uint8Array([0, 255]));
  await new Response(await files.readStream("/x", { start: 1, end: 2 })).arrayBuffer();
  expect(service.data.at(-1)?.headers.range).toBe("bytes=1-2");
  await files.unpack("/d", new Uint8Array([1]));
  expect(service.data.at(-1)).toMatchObject({ method: "POST", url: "/v1/files/archive?path=%2Fd" });
  service.onData = (_asked, response) => json(response, 200, {});
  await files.list("/d", { depth: 3 });
  expect(service.data.at(-1)?.url).toBe("/v1/files/list?path=%2Fd&depth=3");
  await files.delete("/d", { recursive: true });
  expect(service.data.at(-1)).toMatchObject({ method: "DELETE", url: "/v1/files?path=%2Fd&recursive=true" });
  await files.mkdir("/d", { parents: true });
  expect(JSON.parse(service.data.at(-1)?.body ?? "")).toEqual({ path: "/d", parents: true });
  await files.move("/a", "/b");
  expect(JSON.parse(service.data.at(-1)?.body ?? "")).toEqual({ source: "/a", destination: "/b" });
});

test("the store keeps any key, wraps only when asked to and pages", async () => {
  await using service = await FakeService.start();
  const plain = (await service.cloche().create()).store;
  await plain.set("a/b ü%2F?", [1], { ttl_seconds: 5 });
  expect(service.data.at(-1)).toMatchObject({
    method: "PUT",
    url: "/v1/store/a%2Fb%20%C3%BC%252F%3F",
    body: '{"value":[1],"ttl_seconds":5}',
  });
  expect(() => plain.get("..")).toThrow(/not allowed/);
  const wrapping = (await service.cloche({ wrapStoreValues: true }).create()).store;
  await wrapping.batch([
    { op: "set", key: "a", value: null },
    { op: "set", key: "b", value: { x: 1 } },
    { op: "delete", key: "c" },
  ]);
  expect(JSON.parse(service.data.at(-1)?.body ?? "")).toEqual({
    operations: [
      { op: "set", key: "a", value: { v: null } },
      { op: "set", key: "b", value: { x: 1 } },
      { op: "delete", key: "c" },
    ],
  });
  service.onData = ({ url }, response) =>
    json(
      response,
      200,
      url.includes("cursor")
        ? { keys: ["c"], truncated: false, cursor: "" }
        : { keys: ["a", "b"], truncated: true, cursor: "b" },
    );
  const keys: string[] = [];
  for await (const key of plain.allKeys({ prefix: "p" })) keys.push(key);
  expect(keys).toEqual(["a", "b", "c"]);
});

test("services, their logs and checkpoints go to their routes", async () => {
  await using service = await FakeService.start();
  const { services, checkpoints } = await service.cloche().create();
  await services.put("db", { cmd: "redis-server", health_port: 6379 });
  expect(service.data.at(-1)).toMatchObject({ method: "PUT", url: "/v1/services/db" });
  await services.start("db");
  expect(service.data.at(-1)).toMatchObject({ method: "POST", url: "/v1/services/db/start", body: "" });
  await services.exec("db", ["ls"], { timeout_secs: 3 });
  expect(JSON.parse(service.data.at(-1)?.body ?? "")).toEqual({ cmd: ["ls"], timeout_secs: 3 });
  service.onData = (_asked, response) => {
    response.write("line 1\n");
    response.end("line 2\n");
  };
  let log = "";
  for await (const text of services.followLogs("db", { tail: 10 })) log += text;
  expect(log).toBe("line 1\nline 2\n");
  expect(service.data.at(-1)?.url).toBe("/v1/services/db/logs?tail=10&follow=true");
  service.onData = (_asked, response) => json(response, 200, { checkpoints: [{ id: "c" }] });
  expect(await checkpoints.list()).toEqual([{ id: "c" }]);
  await checkpoints.wait("c", { timeout_secs: 1 });
  expect(JSON.parse(service.data.at(-1)?.body ?? "")).toEqual({ checkpoint_id: "c", timeout_secs: 1 });
  service.onData = (_asked, response) =>
    json(response, 408, { code: "deadline_exceeded", message: "not visible yet" });
  await expect(checkpoints.wait("c")).rejects.toMatchObject({ status: 408 });
});
