// A machine whose memory is still read from its image while it runs again: every byte is there, whatever happens meanwhile.
import { beforeAll, expect, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
/** Above the size from which gVisor's images are read in the background. */
const HELD_MB = 700;
let sandbox: TestSandbox;
let written = "";

/** Holds its bytes, and says their checksum, each time anew, to who asks on its port. */
const HOLDER = `
import http.server, random, zlib
held = random.Random(7).randbytes(1 << 20) * ${HELD_MB}
held = bytearray(held)
for page in range(0, len(held), 4096): held[page:page + 4] = page.to_bytes(4, "little")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(zlib.crc32(held)).encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", 8000), Answer).serve_forever()
`;

const checksum = async (of: TestSandbox): Promise<string> => {
  const asked = await client.exec(of, [
    "curl",
    "-sS",
    "--retry",
    "60",
    "--retry-connrefused",
    "http://127.0.0.1:8000/",
  ]);
  expect(asked.exit_code, asked.stderr).toBe(0);
  return asked.stdout;
};

async function into(method: string, state: string): Promise<void> {
  await client.gateway(method, { id: sandbox.id });
  const seen = await eventually(
    async () =>
      (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id })).sandbox.state,
    (one) => one === state,
    120_000,
  );
  expect(seen).toBe(state);
}
const suspended = () => into("SuspendSandbox", "SANDBOX_STATE_SUSPENDED");
const resumed = () => into("ResumeSandbox", "SANDBOX_STATE_RUNNING");

beforeAll(async () => {
  sandbox = await client.create({ memory_mb: 1_536 });
  await client.call(sandbox, "PUT", "/v1/services/holder", {
    json: { cmd: "python3", args: ["-c", HOLDER] },
  });
  await client.call(sandbox, "POST", "/v1/services/holder/start", { json: {} });
  written = await checksum(sandbox);
  expect(written).toMatch(/^\d+$/);
});

test("is whole after a resume, and after a suspend at the moment of the resume", async () => {
  await suspended();
  await resumed();
  await suspended();
  await resumed();
  expect(await checksum(sandbox)).toBe(written);
});

test("is whole in a fork made at the moment of the resume, and in its source", async () => {
  await suspended();
  await resumed();
  const forked = await client.gateway<{ sandbox: TestSandbox; data_plane_token: string }>("ForkSandbox", {
    source_sandbox_id: sandbox.id,
  });
  const fork = { ...forked.sandbox, token: forked.data_plane_token };
  onTestFinished(() => client.session.discard(fork.id));
  expect(await checksum(fork)).toBe(written);
  expect(await checksum(sandbox)).toBe(written);
});
