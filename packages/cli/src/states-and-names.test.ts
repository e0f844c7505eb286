/**
 * What a user meets whose sandbox does not run, or whose name is taken: the words, the command that helps, the exit code.
 */
import { expect, test } from "vitest";
import { events, failure, FakeService, otherId, sandboxId } from "./testing/fake-service.ts";

test("a sandbox that does not run says why, and which command helps", async () => {
  const service = new FakeService();
  const one = (state: string, error_message = ""): void => {
    service.sandboxes = [
      service.sandbox(sandboxId, "demo", { state: `SANDBOX_STATE_${state}`, error_message }),
    ];
  };
  one("ERROR", "its host was lost while it ran");
  const lost = (await service.run(["get", "demo"])).stdout;
  expect(lost).toMatch(/^state +error$/m);
  expect(lost).toMatch(/^error +its host was lost while it ran$/m);
  expect(lost).toMatch(
    new RegExp(`^next +.*cloche checkpoint ls ${sandboxId}.*\\(cloche rm ${sandboxId}\\)$`, "m"),
  );
  one("SUSPENDED");
  expect((await service.run(["get", "demo"])).stdout).toMatch(
    new RegExp(`^next +resume it: cloche resume ${sandboxId}$`, "m"),
  );
  one("RUNNING");
  expect((await service.run(["get", "demo"])).stdout).not.toContain("next");
});

test("states are in the command's words for people, in the contract's for programs", async () => {
  const service = new FakeService();
  const message = `sandbox "x" is in SANDBOX_STATE_ERROR: gone; ResumeSandbox needs SANDBOX_STATE_SUSPENDED`;
  service.answers.ResumeSandbox = () => failure(400, "failed_precondition", message);
  expect(await service.run(["resume", "demo"])).toMatchObject({
    code: 6,
    stderr: expect.stringContaining("is in error: gone; ResumeSandbox needs suspended") as string,
  });
  const json = await service.run(["resume", "demo", "--json"]);
  expect((JSON.parse(json.stderr) as { message: string }).message).toBe(message);
});

test("a resume that ends in error is a conflict, and says what helps", async () => {
  const service = new FakeService();
  const broken = { state: "SANDBOX_STATE_ERROR", error_message: "no memory" };
  service.answers.ResumeSandbox = () => ({
    sandbox: service.sandbox(sandboxId, "demo", { state: "SANDBOX_STATE_RESUMING" }),
  });
  service.answers.GetSandbox = () => ({ sandbox: service.sandbox(sandboxId, "demo", broken) });
  const { code, stderr } = await service.run(["start", sandboxId]);
  expect(code).toBe(6);
  expect(stderr).toMatch(/is error, not running: no memory; .*cloche rm sbx-/);
});

test("a data plane that does not answer because the sandbox does not run is a conflict with its state", async () => {
  const service = new FakeService();
  service.answers["GET /v1/processes"] = () =>
    Response.json(
      {
        code: "unavailable",
        message: "sandbox is SANDBOX_STATE_SUSPENDED",
        details: [{ reason: "not_running" }],
      },
      { status: 503 },
    );
  expect(await service.run(["ps", "demo"])).toMatchObject({ code: 6 });
  service.answers["GET /v1/processes"] = () => failure(503, "unavailable", "too many requests");
  expect(await service.run(["ps", "demo"])).toMatchObject({ code: 1 });
});

test("a name that another sandbox of the team has is refused, unless it is allowed", async () => {
  const service = new FakeService();
  for (const words of [["create"], ["fork", sandboxId], ["run", "--rm"]]) {
    service.asked.length = 0;
    const command = words[0] === "run" ? ["--", "true"] : [];
    const { code, stderr } = await service.run([...words, "--name", "demo", ...command]);
    expect(code).toBe(6);
    expect(stderr).toContain(`${sandboxId} is named "demo" and is running`);
    expect(stderr).toContain(`cloche rm ${sandboxId}`);
    expect(service.asked.map(({ path }) => path).filter((path) => /Create|Fork/.test(path))).toEqual([]);
  }
  expect(await service.run(["create", "--name", "demo", "--allow-duplicate-name"])).toMatchObject({
    code: 0,
  });
  expect(service.sent("CreateSandbox")).toEqual({ name: "demo" });
  // Repeated with its key it answers the same sandbox, which has the name.
  expect(await service.run(["create", "--name", "demo", "--idempotency-key", "k"])).toMatchObject({
    code: 0,
  });
  // The list filters by the beginning of the name.
  expect(await service.run(["create", "--name", "dem"])).toMatchObject({ code: 0 });
  service.sandboxes.push(service.sandbox(otherId, "other"));
  expect(await service.run(["update", "demo", "--name", "other"])).toMatchObject({ code: 6 });
  expect(await service.run(["update", "demo", "--name", "demo"])).toMatchObject({ code: 0 });
  service.sandboxes = [service.sandbox(sandboxId, "demo-2"), service.sandbox(otherId, "src")];
  expect(await service.run(["fork", "src", "--name", "demo", "--count", "2"])).toMatchObject({ code: 6 });
  service.sandboxes = [service.sandbox(sandboxId, "demo", { state: "SANDBOX_STATE_DELETING" })];
  expect(await service.run(["create", "--name", "demo", "--no-wait"])).toMatchObject({ code: 0 });
});

test("the exit codes that docs/cli.md lists", async () => {
  const service = new FakeService();
  const createFails = async (answer: () => Response | Promise<Response>): Promise<number> => {
    service.answers.CreateSandbox = answer;
    return (await service.run(["create"])).code;
  };
  expect((await service.run(["ls"])).code).toBe(0);
  expect(await createFails(() => failure(500, "internal", "x"))).toBe(1);
  expect(await createFails(() => failure(429, "resource_exhausted", "x"))).toBe(1);
  expect((await service.run(["ls", "--nonsense"])).code).toBe(2);
  expect(await createFails(() => Promise.reject(new TypeError("fetch failed")))).toBe(3);
  expect((await service.run(["get", "nobody"])).code).toBe(4);
  expect((await service.run(["service", "get", "demo", "none"])).code).toBe(4);
  expect(await createFails(() => failure(401, "unauthenticated", "x"))).toBe(5);
  expect(await createFails(() => failure(403, "permission_denied", "x"))).toBe(5);
  for (const code of ["failed_precondition", "already_exists", "aborted"])
    expect(await createFails(() => failure(409, code, "x"))).toBe(6);
  // exec: the command's own, or 125.
  service.answers["POST /v1/exec"] = () => ({ stdout: "", stderr: "", exit_code: 42 });
  expect((await service.run(["exec", "demo", "--json", "--", "x"])).code).toBe(42);
  expect((await service.run(["exec", "nobody", "--", "x"])).code).toBe(125);
  expect((await service.run(["exec", "demo"])).code).toBe(2);
  service.answers.ListSandboxes = () => {
    service.abort.abort(new Error("interrupted"));
    return Promise.reject(new Error("aborted"));
  };
  expect((await service.run(["ls"])).code).toBe(130);
});

test("words that people type: stop, start, logs, run", async () => {
  const service = new FakeService();
  await service.run(["stop", "demo", "--no-wait"]);
  expect(service.sent("SuspendSandbox")).toEqual({ id: sandboxId });
  await service.run(["start", "demo", "--no-wait"]);
  expect(service.sent("ResumeSandbox")).toEqual({ id: sandboxId });
  const web = { name: "web", status: "running" };
  service.answers["GET /v1/services"] = () => ({ services: [web] });
  service.answers["GET /v1/services/web/logs"] = () => new Response("line\n");
  expect((await service.run(["logs", "demo"])).stdout).toBe("line\n");
  expect((await service.run(["logs", "demo", "web", "-n", "1"])).stdout).toBe("line\n");
  service.answers["GET /v1/services"] = () => ({ services: [web, { name: "db" }] });
  expect(await service.run(["logs", "demo"])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("name one: web, db") as string,
  });
  service.answers["GET /v1/services"] = () => ({ services: [] });
  expect((await service.run(["logs", "demo"])).code).toBe(4);
  service.answers["POST /v1/exec"] = () => ({ stdout: "", stderr: "", exit_code: 3 });
  service.answers["POST /v1/exec/stream"] = () => events(["exit", { exit_code: 3, timed_out: false }]);
  const kept = await service.run(["run", "--", "x", "--rm"]);
  expect([kept.code, service.asked.findLast(({ text }) => text.includes("--rm"))?.text]).toEqual([
    3,
    expect.stringContaining(`"cmd":["x","--rm"]`),
  ]);
  expect(kept.stderr).toContain(`cloche rm ${sandboxId}`);
  await service.run(["run", "--rm", "--json", "x"]);
  expect(service.sent("DeleteSandbox")).toEqual({ id: sandboxId });
});

test("usage by name and by the key that made the sandboxes", async () => {
  const service = new FakeService();
  const one = (name: string, created_by: string, seconds: number) => ({
    sandbox_id: sandboxId,
    name,
    created_by,
    compute_seconds: seconds,
    cpu_seconds: 2 * seconds,
    memory_mb_seconds: seconds,
  });
  const usage = [one("a", "key-1", 1), one("b", "key-2", 5), one("a", "key-2", 2), one("", "", 1)];
  service.answers.GetUsage = () => ({ usage, compute_seconds: 9, from: "", to: "t", next_page_token: "" });
  service.answers.ListApiKeys = () => ({ keys: [{ id: "key-1", name: "ci" }] });
  expect(
    (await service.run(["usage", "--by", "name"])).stdout.split("\n").map((line) => line.split(/ {2,}/)),
  ).toEqual([
    ["NAME", "SANDBOXES", "SECONDS", "CPU SECONDS"],
    ["b", "1", "5.000", "10.000"],
    ["a", "2", "3.000", "6.000"],
    ["unknown", "1", "1.000", "2.000"],
    [""],
  ]);
  const byKey = (await service.run(["usage", "--by", "key"])).stdout;
  expect(byKey).toMatch(/^key-2 +2 +7\.000/m);
  expect(byKey).toMatch(/^key-1 +ci +1 +1\.000/m);
});

test("top shows the busiest first", async () => {
  const service = new FakeService();
  service.sandboxes.push(service.sandbox(otherId, "busy"));
  service.answers.GetSandboxMetrics = ({ text }) => ({
    now: {
      at: "t",
      cpu_share: text.includes(otherId) ? 0.5 : 0.1,
      memory_bytes: 1024 ** 2,
      disk_bytes: 2 * 1024 ** 2,
      processes: 3,
    },
    history: [],
  });
  const lines = (await service.run(["top"])).stdout.split("\n");
  expect(lines[1]).toMatch(/busy +50\.0 % of 2 +1 MiB of 1G +2 MiB of 8G +3$/);
  expect(lines[2]).toMatch(/demo +10\.0 % of 2 /);
});
