// Who answers before it has read the request: the answer arrives, and the next request is not held up by what was left unread.
import { join } from "node:path";
import { beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";
import { pythonWithTools } from "../fixtures/python-tools.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const ROUNDS = 40;
const client = sharedClient();
let sandbox: TestSandbox;

// Answers 413 to any POST, in one write (the second of two may be lost to its own reset, anywhere), without reading its body, and ends the connection with it unread.
const server = `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    def do_POST(self):
        self.send_response(413); self.send_header("content-length", "8"); self.end_headers(); self.wfile.write(b"too much")
        self.close_connection = True
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`;

// Sends 20 and 50 MiB where 1 MiB is the most, and prints what it gets. By HTTP/2 httpx copies all that is left for each frame of 16 KiB.
const asyncHttpx = `
import asyncio, httpx, os, ssl
async def main():
    context = ssl.create_default_context(cafile=os.environ["CA"])
    headers = {"authorization": "Bearer " + os.environ["TOKEN"]}
    for http2 in (False, True):
        async with httpx.AsyncClient(http2=http2, verify=context, timeout=60) as client:
            for mib in (20,) if http2 else (20, 50):
                answer = await client.post(os.environ["TARGET"], content=bytes(mib << 20), headers=headers)
                print(answer.http_version, answer.status_code, answer.json()["code"])
asyncio.run(main())
`;

beforeAll(async () => {
  sandbox = await client.create();
  await client.call(sandbox, "POST", "/v1/files?path=/root/server.py", { body: Buffer.from(server) });
  const definition = { cmd: "python3", args: ["/root/server.py"], health_port: 8000 };
  await client.call(sandbox, "PUT", "/v1/services/hasty", { json: definition });
  const started = await client.call(sandbox, "POST", "/v1/services/hasty/start");
  expect(JSON.parse(started.body.toString())).toMatchObject({ status: "running" });
});

describe("an answer that comes before the request was read", () => {
  test("of a port's server reaches its client every time", async () => {
    const headers = { authorization: `Bearer ${sandbox.token}` };
    const statuses: number[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      const body = Buffer.alloc(round % 2 === 0 ? 40_000 : 1_000_000, "x");
      const request = { method: "POST", path: "/upload", headers, body };
      const answer = await client.session.wire.dataPlane(`8000-${sandbox.domain}`, request);
      statuses.push(answer.status);
    }
    expect(statuses).toEqual(Array.from({ length: ROUNDS }, () => 413));
  });

  test("of a refused archive leaves nothing in the next request's way", async () => {
    const path = "/v1/files/archive?path=/root/out";
    const took: number[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      // No tar: refused at its first block.
      const body = Buffer.alloc(round % 2 === 0 ? 40_000 : 1_000_000, "x");
      expect((await client.call(sandbox, "POST", path, { body })).status).toBe(400);
      const began = performance.now();
      expect((await client.call(sandbox, "GET", "/v1/files/exists?path=/root")).status).toBe(200);
      took.push(performance.now() - began);
    }
    // What was left unread was waited for until the agent gave up, ten seconds later.
    expect(Math.max(...took)).toBeLessThan(8_000);
  });

  test("is our own 413 to Python's async httpx, by HTTP/1.1 and HTTP/2", async () => {
    const python = await pythonWithTools(join(repositoryRoot, "tests/fixtures/e2b-requirements.txt"));
    const { env, home, target } = inject("service");
    const sent = {
      CA: join(home, "tls", "ca.pem"),
      TOKEN: sandbox.token,
      TARGET: `https://localhost:${target.edgePort}/sandboxes/${sandbox.id}/v1/files?path=/root/large`,
    };
    const { stdout, stderr } = await runCommand(python, ["-c", asyncHttpx], { env: { ...env, ...sent } });
    const answers = ["HTTP/1.1", "HTTP/1.1", "HTTP/2"].map(
      (version) => `${version} 413 resource_exhausted\n`,
    );
    expect(stdout, stderr).toBe(answers.join(""));
  });
});
