// Bodies that nobody meant, to every method of the gateway; and bytes that are hardly HTTP, to both listeners.
import net from "node:net";
import tls from "node:tls";
import fc from "fast-check";
import { afterEach, beforeAll, expect, inject, test } from "vitest";
import { contractProblems } from "../conformance/contract-check.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { gatewayMethods } from "../conformance/surface-map.ts";
import { sharedClient } from "../fixtures/client.ts";
import { patience, plan } from "./seed.ts";

const { target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
});
afterEach(async () => {
  expect((await client.exec(sandbox, ["echo", "alive"])).stdout).toBe("alive\n");
  expect(await client.gateway("GetSandbox", { id: sandbox.id })).toHaveProperty(
    "sandbox.state",
    "SANDBOX_STATE_RUNNING",
  );
});

const scalar = fc.oneof(
  fc.constantFrom<unknown>(
    null,
    true,
    0,
    -1,
    1.5,
    2 ** 32,
    2 ** 53,
    "",
    "\0",
    [],
    {},
    [1],
    { a: 1 },
    "a".repeat(2_000),
  ),
  fc.string({ unit: "binary", maxLength: 40 }),
);
const fieldNames = [
  "name",
  "checkpoint_id",
  "template",
  "metadata",
  "env",
  "cpus",
  "memory_mb",
  "disk_mb",
  "runtime",
  "timeout_seconds",
  "on_timeout",
  "on_host_loss",
  "checkpoint_every_seconds",
  "wait_durable",
  "order_by",
  "idle_suspend_seconds",
  "auto_resume",
  "public_ports",
  "page_size",
  "page_token",
  "states",
  "port",
  "path",
  "expires_in_seconds",
  "__proto__",
];
// Never the id of a sandbox that others use; keys of the team are not revoked.
const id = fc.constantFrom<unknown>(
  "sbx-00000000000000000000",
  "ckpt-00000000000000000000",
  "",
  "../x",
  5,
  null,
);
const body = fc
  .tuple(
    fc.dictionary(fc.constantFrom(...fieldNames), scalar, { maxKeys: 6 }),
    fc.record({ id, sandbox_id: id, source_sandbox_id: id }, { requiredKeys: [] }),
  )
  .map(([fields, ids]) => JSON.stringify({ ...fields, ...ids }));

test("strange bodies get an answer of the contract", { timeout: patience(400_000) }, async () => {
  const made: string[] = [];
  await fc.assert(
    fc.asyncProperty(fc.constantFrom(...gatewayMethods), body, async ({ name, path }, text) => {
      // What succeeds must be undone: a create is asked for what cannot be.
      const asked = name === "CreateSandbox" ? text.replace(/^\{/, '{"disk_mb":1,"runtime":"none",') : text;
      const answer = await client.session.wire.gateway({
        method: "POST",
        path,
        headers: { "content-type": "application/json", authorization: `Bearer ${target.apiKey}` },
        body: Buffer.from(asked),
      });
      if (answer.status === 200 && name === "CreateSandbox")
        made.push((JSON.parse(answer.body.toString()) as { sandbox: { id: string } }).sandbox.id);
      expect(contractProblems("gateway", "POST", path, answer), asked).toEqual([]);
    }),
    plan(500),
  );
  for (const one of made) await client.session.discard(one);
});

const plain = (): net.Socket => {
  const { hostname, port } = new URL(target.gatewayUrl);
  return net.connect(Number(port), hostname);
};
const secure = (): net.Socket =>
  tls.connect({
    host: target.edgeHost,
    port: target.edgePort,
    ca: target.ca,
    servername: sandbox.domain.replace(/:\d+$/, ""),
  });

/** What the listener says to some bytes, until it closes or is quiet. */
function told(socket: net.Socket, bytes: Buffer): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    const done = (): void => {
      socket.destroy();
      resolve(text);
    };
    socket.setTimeout(300, done);
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
    });
    socket.on("error", done);
    socket.on("close", done);
    socket.write(bytes);
  });
}

test.each([
  ["the gateway", plain],
  ["the edge", secure],
])("bytes that are hardly HTTP do not shake %s", { timeout: patience(300_000) }, async (_, connect) => {
  const valid = `POST /v1/exec HTTP/1.1\r\nhost: ${sandbox.domain}\r\nauthorization: Bearer x\r\ncontent-length: 2\r\n\r\n{}`;
  const edit = fc.tuple(fc.nat(valid.length), fc.uint8Array({ maxLength: 8 }), fc.nat(8));
  await fc.assert(
    fc.asyncProperty(fc.array(edit, { minLength: 1, maxLength: 6 }), async (edits) => {
      let bytes = Buffer.from(valid);
      for (const [at, inserted, cut] of edits) {
        const place = Math.min(at, bytes.length);
        bytes = Buffer.concat([bytes.subarray(0, place), Buffer.from(inserted), bytes.subarray(place + cut)]);
      }
      const text = await told(connect(), bytes);
      const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(text)?.[1] ?? 0);
      expect(status === 0 || (status >= 400 && status < 500) || status === 501, text).toBe(true);
    }),
    plan(150),
  );
});
