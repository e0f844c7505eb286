// What happens to a sandbox whose programs take more memory than it has: they are killed, nothing else is.
import { beforeAll, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { type ExecResult, eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const tellsWhy = inject("service").runtime === "gvisor"; // a virtual machine's kernel kills and tells nobody
const memory_mb = 256;
let sandbox: TestSandbox;
let servicePid = 0;

type Killed = ExecResult & { out_of_memory?: boolean };
const python = (program: string): Promise<Killed> => client.exec(sandbox, ["python3", "-c", program]);

beforeAll(async () => {
  sandbox = await client.create({ memory_mb });
  await client.call(sandbox, "PUT", "/v1/store/kept", { json: { value: "yes" } });
  await client.call(sandbox, "PUT", "/v1/services/waits", {
    json: { cmd: "sleep", args: ["infinity"], restart: "always" },
  });
  const started = await client.call(sandbox, "POST", "/v1/services/waits/start", { json: {} });
  servicePid = (JSON.parse(started.body.toString()) as { pid: number }).pid;
  expect(servicePid).toBeGreaterThan(0);
});

const service = async (): Promise<unknown> =>
  (JSON.parse((await client.call(sandbox, "GET", "/v1/services")).body.toString()) as { services: unknown[] })
    .services[0];

/** Agent, store and files are there as before; programs run again. */
async function expectUnharmed(): Promise<void> {
  const kept = await client.call(sandbox, "GET", "/v1/store/kept");
  expect(JSON.parse(kept.body.toString())).toMatchObject({ value: "yes" });
  expect(
    (await client.call(sandbox, "POST", "/v1/files?path=/root/x", { body: Buffer.alloc(64) })).status,
  ).toBe(200);
  const seen = await eventually(
    () => client.exec(sandbox, ["sh", "-c", "echo fine; python3 -c 'print(len(bytearray(50 << 20)))'"]),
    ({ stdout }) => stdout === "fine\n52428800\n",
  );
  expect(seen.stdout).toBe("fine\n52428800\n");
  const { state } = (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id }))
    .sandbox;
  expect(state).toBe("SANDBOX_STATE_RUNNING");
}

test("a program that takes more than there is dies, and its caller learns why", async () => {
  const result = await python("b = bytearray(4 << 30); print('never')");
  expect(result).toMatchObject({ exit_code: 137, ok: false, timed_out: false, stdout: "" });
  if (tellsWhy) expect(result.out_of_memory).toBe(true);
  await expectUnharmed();
  expect(await service()).toMatchObject({ status: "running", pid: servicePid, restarts: 0 });
});

test("so do children together, each of which takes little", async () => {
  const children = [
    "import os, time",
    "for i in range(60):",
    "  if os.fork() == 0:",
    "    kept = [bytearray(1 << 20) for _ in range(24)]",
    "    time.sleep(600)",
    "time.sleep(1)",
    "ended = 0",
    "while True:",
    "  try: pid, status = os.waitpid(-1, os.WNOHANG)",
    "  except ChildProcessError: break",
    "  if pid == 0: break",
    "  ended += 1",
    "print('killed' if ended > 0 else 'none')",
    "os.killpg(0, 9)",
  ].join("\n");
  const result = await python(children);
  expect(result.exit_code).toBe(137);
  if (tellsWhy) expect(result.out_of_memory).toBe(true);
  await expectUnharmed();
  expect(await service()).toMatchObject({ status: "running", pid: servicePid, restarts: 0 });
});

test("files in memory count, and can be deleted when they have taken it all", async () => {
  const fill = [
    "mkdir -p /mnt/m && mount -t tmpfs -o size=4g none /mnt/m",
    "dd if=/dev/zero of=/tmp/big bs=1M count=1000",
    "dd if=/dev/zero of=/mnt/m/big bs=1M count=4000",
  ];
  await client.exec(sandbox, ["sh", "-c", fill.join("; ")]);
  for (const path of ["/tmp/big", "/mnt/m/big"])
    expect((await client.call(sandbox, "DELETE", `/v1/files?path=${path}`)).status, path).toBe(200);
  await expectUnharmed();
  // What was largest while the file grew has died with its writer; it comes back.
  const again = await eventually(service, (one) => (one as { status: string }).status === "running");
  expect(again).toMatchObject({ status: "running" });
});

test("a neighbour on the same machine notices nothing", async () => {
  const neighbour = await client.create();
  const greedy = python("while True: bytearray(64 << 20) and [bytearray(64 << 20) for _ in range(64)]");
  const counted = await client.shell(neighbour, "python3 -c 'print(sum(bytearray(200 << 20)))'");
  expect(counted).toBe("0\n");
  expect((await greedy).exit_code).toBe(137);
  await client.session.discard(neighbour.id);
});
