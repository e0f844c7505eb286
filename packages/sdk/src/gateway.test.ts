import { expect, test } from "vitest";
import { ClocheApiError, ClocheConnectionError, ClocheSdkError } from "./errors.ts";
import { FakeService, json, sandboxId } from "./testing/fake-service.ts";

test("every method goes to its path with the API key and its own field names", async () => {
  await using service = await FakeService.start();
  const { gateway } = service.cloche();
  service.methods.ListSandboxes = () => ({ sandboxes: [], next_page_token: "" });
  service.methods.ForkSandbox = () => ({ sandbox: service.info() });
  service.methods.ListCheckpoints = () => ({ checkpoints: [] });
  service.methods.ListApiKeys = () => ({ keys: [] });
  for (const method of ["UpdateSandbox", "SuspendSandbox", "ResumeSandbox"]) {
    service.methods[method] = () => ({ sandbox: service.info() });
  }
  const calls: Array<[string, object, () => Promise<unknown>]> = [
    [
      "CreateSandbox",
      { name: "x", env: { A: "b" } },
      () => gateway.createSandbox({ name: "x", env: { A: "b" } }),
    ],
    ["GetSandbox", { id: "i" }, () => gateway.getSandbox("i")],
    [
      "ListSandboxes",
      { states: ["SANDBOX_STATE_RUNNING"] },
      () => gateway.listSandboxes({ states: ["SANDBOX_STATE_RUNNING"] }),
    ],
    ["DeleteSandbox", { id: "i" }, () => gateway.deleteSandbox("i")],
    ["SuspendSandbox", { id: "i" }, () => gateway.suspendSandbox("i")],
    ["SuspendSandbox", { id: "i", memory: false }, () => gateway.suspendSandbox("i", { memory: false })],
    ["ResumeSandbox", { id: "i" }, () => gateway.resumeSandbox("i")],
    [
      "ForkSandbox",
      { source_sandbox_id: "i", name: "n" },
      () => gateway.forkSandbox({ source_sandbox_id: "i", name: "n" }),
    ],
    ["IssueDataPlaneToken", { sandbox_id: "i" }, () => gateway.issueDataPlaneToken("i")],
    [
      "UpdateSandbox",
      { id: "i", metadata: { entries: { a: "b" } }, public_ports: { ports: [80] } },
      () => gateway.updateSandbox({ id: "i", metadata: { a: "b" }, public_ports: [80] }),
    ],
    ["ListCheckpoints", { sandbox_id: "i" }, () => gateway.listCheckpoints({ sandbox_id: "i" })],
    ["DeleteCheckpoint", { id: "c" }, () => gateway.deleteCheckpoint("c")],
    ["GetUsage", { sandbox_id: "i", from: "f" }, () => gateway.getUsage({ sandbox_id: "i", from: "f" })],
    [
      "IssuePortLink",
      { sandbox_id: "i", port: 80 },
      () => gateway.issuePortLink({ sandbox_id: "i", port: 80 }),
    ],
    ["GetSandboxMetrics", { id: "i" }, () => gateway.getSandboxMetrics("i")],
    ["CreateApiKey", { name: "k" }, () => gateway.createApiKey({ name: "k" })],
    ["ListApiKeys", {}, () => gateway.listApiKeys()],
    ["RevokeApiKey", { id: "k" }, () => gateway.revokeApiKey("k")],
  ];
  for (const [method, message, call] of calls) {
    await call();
    const asked = service.asked.at(-1);
    expect(asked?.url.split("/")[2], method).toBe(method);
    expect(JSON.parse(asked?.body ?? "")).toEqual(message);
    expect(asked?.headers).toMatchObject({
      authorization: "Bearer secret",
      "content-type": "application/json",
    });
  }
});

test("several clones of one call each have their own token", async () => {
  await using service = await FakeService.start();
  const clone = (id: string) => ({ ...service.info(), id });
  service.methods.ForkSandbox = () => ({
    sandbox: clone("a"),
    sandboxes: [clone("a"), clone("b")],
    data_plane_token: "ta",
    data_plane_tokens: ["ta", "tb"],
    data_plane_token_expires_at_unix: 9e9,
  });
  const clones = await (await service.cloche().create()).forkMany(2, { name: "n" });
  expect(JSON.parse(service.asked.at(-1)?.body ?? "")).toEqual({
    source_sandbox_id: sandboxId,
    name: "n",
    count: 2,
  });
  expect(clones.map(({ id }) => id)).toEqual(["a", "b"]);
  expect(await Promise.all(clones.map((one) => one.token()))).toEqual(["ta", "tb"]);
});

test("an error answer becomes a typed error", async () => {
  await using service = await FakeService.start();
  service.methods.GetSandbox = () => {
    throw { status: 404, code: "not_found", message: "id: there is no such sandbox" };
  };
  const error = await service
    .cloche()
    .get("sbx-nope")
    .catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(ClocheApiError);
  expect(error).toMatchObject({
    code: "not_found",
    status: 404,
    requestId: "req-1",
    message: "id: there is no such sandbox",
  });
});

test("an address that is no gateway is told as such", async () => {
  await using service = await FakeService.start();
  const html = service.cloche({
    fetch: () => Promise.resolve(new Response("<html>", { status: 502, statusText: "Bad Gateway" })),
  });
  await expect(html.get("x")).rejects.toMatchObject({
    code: "unknown",
    status: 502,
    message: "HTTP 502 Bad Gateway",
  });
  const page = service.cloche({ fetch: () => Promise.resolve(new Response("<html>")) });
  await expect(page.get("x")).rejects.toThrow(/is .* a Cloche gateway\?/);
});

test("calls that are safe to repeat are repeated when no answer came, creating ones are not", async () => {
  await using service = await FakeService.start();
  let attempts = 0;
  const flaky = service.cloche({
    fetch: (url, init) => {
      attempts += 1;
      return attempts < 3 ? Promise.reject(new TypeError("fetch failed")) : service.fetch(url, init);
    },
  });
  expect((await flaky.get(sandboxId)).id).toBe(sandboxId);
  expect(attempts).toBe(3);
  attempts = 0;
  await expect(flaky.create()).rejects.toBeInstanceOf(ClocheConnectionError);
  expect(attempts).toBe(1);
  attempts = 0;
  expect((await flaky.create({ idempotency_key: "once" })).id).toBe(sandboxId);
  expect(attempts).toBe(3);
  const dead = service.cloche({
    fetch: () => Promise.reject(new TypeError("fetch failed", { cause: new Error("ECONNREFUSED") })),
  });
  await expect(dead.get("x")).rejects.toThrow(/no answer from 127\.0\.0\.1:\d+: ECONNREFUSED/);
});

test("list goes on over all pages", async () => {
  await using service = await FakeService.start();
  service.methods.ListSandboxes = ({ page_token: token }) =>
    token === ""
      ? { sandboxes: [{ id: "a" }, { id: "b" }], next_page_token: "2" }
      : { sandboxes: [{ id: "c" }], next_page_token: "" };
  const ids: string[] = [];
  for await (const sandbox of service.cloche().list()) ids.push(sandbox.id);
  expect(ids).toEqual(["a", "b", "c"]);
});

test("waitFor polls until the state is there, and tells why it cannot come", async () => {
  await using service = await FakeService.start();
  const states = ["SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_SUSPENDED"];
  service.methods.SuspendSandbox = () => ({
    sandbox: { ...service.info(), state: "SANDBOX_STATE_SUSPENDING" },
  });
  service.methods.GetSandbox = () => ({
    sandbox: { ...service.info(), state: states.shift(), error_message: "no room" },
  });
  const sandbox = await service.cloche().create();
  await sandbox.suspend();
  expect((await sandbox.waitFor("SANDBOX_STATE_SUSPENDED")).state).toBe("SANDBOX_STATE_SUSPENDED");
  await sandbox.suspend();
  states.push("SANDBOX_STATE_RUNNING");
  await expect(sandbox.waitFor("SANDBOX_STATE_SUSPENDED")).rejects.toThrow(
    /is SANDBOX_STATE_RUNNING, not .*: no room/,
  );
  states.push("SANDBOX_STATE_ERROR");
  await expect(sandbox.waitFor("SANDBOX_STATE_RUNNING")).rejects.toThrow(/SANDBOX_STATE_ERROR/);
  states.push("SANDBOX_STATE_CREATING");
  await expect(sandbox.waitFor("SANDBOX_STATE_RUNNING", { timeoutMs: 10 })).rejects.toThrow(/after 10 ms/);
  service.methods.GetSandbox = () => {
    throw { status: 404, code: "not_found", message: "gone" };
  };
  await expect(sandbox.waitFor("SANDBOX_STATE_RUNNING")).rejects.toThrow(/was deleted/);
  await sandbox.waitUntilDeleted();
});

test("an abort ends a wait and a call with its own reason", async () => {
  await using service = await FakeService.start();
  const sandbox = await service.cloche().create();
  const reason = new Error("enough");
  const abort = new AbortController();
  const waiting = sandbox.waitFor("SANDBOX_STATE_SUSPENDED", { signal: abort.signal });
  abort.abort(reason);
  await expect(waiting).rejects.toBe(reason);
  await expect(sandbox.refresh({ signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  await expect(sandbox.exec(["true"], { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
});

test("a sandbox without a domain yet is waited for", async () => {
  await using service = await FakeService.start();
  service.methods.CreateSandbox = () => ({
    sandbox: { ...service.info(), state: "SANDBOX_STATE_CREATING", domain: "" },
    data_plane_token: "t",
    data_plane_token_expires_at_unix: 9e9,
  });
  const sandbox = await service.cloche().create();
  expect(() => sandbox.portUrl(80)).toThrow(ClocheSdkError);
  service.onData = (_asked, response) => json(response, 200, { stdout: "hi" });
  expect((await sandbox.exec(["echo"])).stdout).toBe("hi");
  expect(sandbox.portUrl(80)).toBe(`https://80-${sandboxId}.cloche.test`);
});
