import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { events, failure, FakeService } from "../testing/fake-service.ts";

const exitEvent = (exit_code: number, timed_out = false): [string, object] => [
  "exit",
  { exit_code, ok: exit_code === 0, duration_ms: 1, timed_out },
];

test("exec writes output as it comes and passes the exit code through", async () => {
  const service = new FakeService();
  service.answers["POST /v1/exec"] = () =>
    events(["stdout", { data: "out\n" }], ["stderr", { data: "err\n" }], exitEvent(7));
  const args = [
    "exec",
    "-w",
    "/srv",
    "-e",
    "A=1",
    "-e",
    "B=x=y",
    "-u",
    "nobody",
    "--timeout",
    "1.5",
    "demo",
    "--",
    "sh",
    "-c",
    "exit 7",
  ];
  expect(await service.run(args)).toMatchObject({ code: 7, stdout: "out\n", stderr: "err\n" });
  expect(service.sent("POST /v1/exec")).toEqual({
    cmd: ["sh", "-c", "exit 7"],
    dir: "/srv",
    env: { A: "1", B: "x=y" },
    user: "nobody",
    timeout_ms: 1_500,
    output_encoding: "base64",
  });
});

const allBytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
const inBase64 = (bytes: Buffer): object => ({ data: bytes.toString("base64"), output_encoding: "base64" });

test("exec passes every byte of the output on, and a character that came in two pieces", async () => {
  const service = new FakeService();
  const euro = Buffer.from("€");
  const pieces = [allBytes, euro.subarray(0, 1), euro.subarray(1)];
  service.answers["POST /v1/exec"] = () =>
    events(...pieces.map((piece): [string, object] => ["stdout", inBase64(piece)]), exitEvent(0));
  const { bytes } = await service.run(["exec", "demo", "cat", "/bin/ls"]);
  expect(bytes.equals(Buffer.concat([allBytes, euro]))).toBe(true);
});

test("exec needs no -- : what follows the sandbox belongs to the command", async () => {
  const service = new FakeService();
  service.answers["POST /v1/exec"] = () => events(exitEvent(0));
  for (const args of [
    ["exec", "demo", "ls", "-l", "--json"],
    ["exec", "-w", "/", "demo", "ls", "-l", "--json"],
  ]) {
    expect((await service.run(args)).code).toBe(0);
    expect(service.sent("POST /v1/exec").cmd).toEqual(["ls", "-l", "--json"]);
  }
  await service.run(["exec", "demo", "git", "log", "--", "x"]);
  expect(service.sent("POST /v1/exec").cmd).toEqual(["git", "log", "--", "x"]);
  await service.run(["exec", "demo", "--", "--", "x"]);
  expect(service.sent("POST /v1/exec").cmd).toEqual(["--", "x"]);
});

test("exec passes standard input with -i, as text where it is that, else as bytes", async () => {
  const service = new FakeService();
  service.answers["POST /v1/exec"] = () => events(exitEvent(0));
  await service.run(["exec", "-i", "demo", "--", "cat"], "hé\0llo");
  expect(service.sent("POST /v1/exec")).toMatchObject({ stdin: "hé\0llo" });
  await service.run(["exec", "demo", "--", "cat"], "unread");
  expect(service.sent("POST /v1/exec").stdin).toBeUndefined();
  await service.run(["exec", "-i", "demo", "--", "cat"], allBytes);
  expect(service.sent("POST /v1/exec")).toMatchObject({ stdin_base64: allBytes.toString("base64") });
  expect(service.sent("POST /v1/exec")).not.toHaveProperty("stdin_stream");
});

test("exec -i runs while standard input is open, passes on what comes, and ends when the command does", async () => {
  for (const flags of [[], ["--json"]]) {
    const service = new FakeService();
    const stdin = new PassThrough();
    const first = Promise.withResolvers<void>();
    const output = new ReadableStream<Uint8Array>({
      async start(controller) {
        await first.promise;
        controller.enqueue(
          new TextEncoder().encode(`event: exit\ndata: ${JSON.stringify(exitEvent(5)[1])}\n\n`),
        );
        controller.close();
      },
    });
    service.answers["POST /v1/exec"] = () => {
      stdin.write(allBytes);
      return new Response(output, { headers: { "content-type": "text/event-stream" } });
    };
    service.answers["POST /v1/exec/stdin"] = () => {
      first.resolve();
      return { ok: true };
    };
    expect(await service.run([...flags, "exec", "-i", "demo", "cat"], stdin)).toMatchObject({
      code: 5,
      stderr: "",
    });
    const stream = service.sent("POST /v1/exec")["stdin_stream"];
    expect(stream).toMatch(/^[\w-]{16,64}$/);
    expect(service.sent("POST /v1/exec/stdin")).toEqual({ stream, data_base64: allBytes.toString("base64") });
    expect(stdin.destroyed).toBe(true);
  }
});

test("exec -i says so where standard input cannot be passed on", async () => {
  const service = new FakeService();
  const stdin = new PassThrough();
  service.answers["POST /v1/exec"] = ({ signal }) => {
    stdin.write("x");
    const silent = new ReadableStream({
      start: (controller) => signal?.addEventListener("abort", () => controller.error(signal.reason)),
    });
    return new Response(silent, { headers: { "content-type": "text/event-stream" } });
  };
  service.answers["POST /v1/exec/stdin"] = () => failure(403, "permission_denied", "not you");
  expect(await service.run(["exec", "-i", "demo", "cat"], stdin)).toMatchObject({
    code: 125,
    stderr: "cloche: not you (request req-1)\n",
  });
});

test("exec --json prints the whole answer; its own failures are 125", async () => {
  const service = new FakeService();
  const answer = { stdout: "a", stderr: "", exit_code: 3, ok: false, duration_ms: 1, timed_out: false };
  service.answers["POST /v1/exec"] = () => answer;
  const json = await service.run(["--json", "exec", "demo", "--", "x"]);
  expect(json.code).toBe(3);
  expect(JSON.parse(json.stdout)).toEqual(answer);
  service.answers["POST /v1/exec"] = () => failure(400, "invalid_argument", "dir: no such directory");
  expect(await service.run(["exec", "demo", "--", "x"])).toMatchObject({
    code: 125,
    stderr: "cloche: dir: no such directory (request req-1)\n",
  });
  expect((await service.run(["exec", "nobody", "--", "x"])).code).toBe(125);
  expect((await service.run(["exec", "demo"])).code).toBe(2);
  service.answers["POST /v1/exec"] = () => events(exitEvent(137, true));
  expect(await service.run(["exec", "--timeout", "2", "demo", "x"])).toMatchObject({
    code: 137,
    stderr: "cloche: timed out after 2 s and was killed\n",
  });
});

test("Ctrl-C is 130", async () => {
  const service = new FakeService();
  service.answers["POST /v1/exec"] = () => {
    service.abort.abort(new Error("interrupted"));
    throw new TypeError("fetch failed");
  };
  expect((await service.run(["exec", "demo", "sleep", "9"])).code).toBe(130);
});
