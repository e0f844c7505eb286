/** Exec and files through HTTPS with auth, against what one would use instead and against the floor. */
import { randomBytes } from "node:crypto";
import { Agent, request } from "node:https";
import { readFile } from "node:fs/promises";
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";

type Sandbox = Awaited<ReturnType<Lab["cloche"]["create"]>>;

const check = (condition: boolean, what: string): void => {
  if (!condition) throw new Error(what);
};

/** One kept-alive TLS connection to the edge, from the contract alone: no SDK in between. */
export class RawClient {
  readonly #agent: Agent;
  readonly #domain: string;
  readonly #port: number;
  readonly #token: string;

  constructor(options: { ca: string; edgeUrl: string; domain: string; token: string }) {
    const edge = new URL(options.edgeUrl);
    this.#domain = options.domain;
    this.#port = Number(edge.port);
    this.#token = options.token;
    const servername = options.domain.split(":")[0] ?? "";
    this.#agent = new Agent({
      keepAlive: true,
      maxSockets: 1,
      ca: options.ca,
      servername,
      host: edge.hostname,
    });
  }

  send(method: string, path: string, body?: string | Buffer): Promise<{ status: number; body: Buffer }> {
    return new Promise((resolve, reject) => {
      const headers = { host: this.#domain, authorization: `Bearer ${this.#token}` };
      const options = { agent: this.#agent, host: "127.0.0.1", port: this.#port, method, path, headers };
      const call = request(options, (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk: Buffer) => chunks.push(chunk));
        response.on("end", () => resolve({ status: response.statusCode ?? 0, body: Buffer.concat(chunks) }));
        response.on("error", reject);
      });
      call.on("error", reject);
      call.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** `domain`: the sandbox's, or that of one of its ports. */
export async function rawClient(lab: Lab, sandbox: Pick<Sandbox, "id" | "domain">): Promise<RawClient> {
  const { jwt } = await lab.cloche.gateway.issueDataPlaneToken(sandbox.id);
  const ca = await readFile(lab.service.status.ca_cert, "utf8");
  return new RawClient({ ca, edgeUrl: lab.service.status.edge_url, domain: sandbox.domain, token: jwt });
}

const spawnPort = 8_000;
/**
 * Spawns `true` once for each request and answers the ms that it took: the floor of an exec that comes when it comes, as all
 * arms here do. What was at rest until then, processors included, wakes up in it too.
 */
const spawnOnRequest = `import os,time
from http.server import BaseHTTPRequestHandler,ThreadingHTTPServer
class Spawn(BaseHTTPRequestHandler):
    protocol_version='HTTP/1.1'
    def do_GET(self):
        a=time.perf_counter(); p=os.posix_spawn('/usr/bin/true',['true'],{}); os.waitpid(p,0)
        took=str((time.perf_counter()-a)*1000).encode()
        self.send_response(200); self.send_header('Content-Length',str(len(took))); self.end_headers(); self.wfile.write(took)
    def log_message(self,*words): pass
ThreadingHTTPServer(('127.0.0.1',${spawnPort}),Spawn).serve_forever()`;

export async function execCell(lab: Lab, samples: number): Promise<{ cell: Cell; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-exec" });
  const raw = await rawClient(lab, sandbox);
  await sandbox.services.put("spawner", {
    cmd: "python3",
    args: ["-c", spawnOnRequest],
    health_port: spawnPort,
  });
  await sandbox.services.start("spawner");
  const spawner = await rawClient(lab, { id: sandbox.id, domain: `${spawnPort}-${sandbox.domain}` });
  const spawn = async (): Promise<number> => {
    const { status, body } = await spawner.send("GET", "/");
    check(status === 200, `bare spawn: ${status}`);
    return Number(body.toString());
  };
  const exec = async (): Promise<void> => {
    const { status, body } = await raw.send("POST", "/v1/exec", '{"cmd":["true"]}');
    check(
      status === 200 && (JSON.parse(body.toString()) as { exit_code: number }).exit_code === 0,
      `exec: ${status}`,
    );
  };
  const cell: Cell = {
    name: "exec true",
    samples,
    arms: [
      { name: "Cloche, HTTPS + auth", run: exec },
      { name: "bare spawn in the sandbox", run: spawn },
    ],
    targets: [{ arm: "Cloche, HTTPS + auth", against: "bare spawn in the sandbox", atMost: 1.7 }],
  };
  const close = async (): Promise<void> => {
    raw.close();
    spawner.close();
    await sandbox.delete();
  };
  return { cell, close };
}

export async function fileCell(
  lab: Lab,
  samples: number,
): Promise<{ cells: Cell[]; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-files" });
  const raw = await rawClient(lab, sandbox);
  const data = randomBytes(1_048_576);
  const write = async (): Promise<void> => {
    const { status } = await raw.send("POST", "/v1/files?path=/root/one.bin", data);
    check(status === 200, `write: ${status}`);
  };
  await write();
  const cells: Cell[] = [
    {
      name: "1 MiB write",
      samples,
      arms: [
        { name: "Cloche, HTTPS + auth", run: write },
        {
          name: "runsc exec cat >",
          run: async () => void (await lab.runsc.exec(["sh", "-c", "cat > /tmp/one"], data)),
        },
      ],
      targets: [{ arm: "Cloche, HTTPS + auth", against: "runsc exec cat >", atMost: 0.75 }],
    },
    {
      name: "1 MiB read",
      samples,
      arms: [
        {
          name: "Cloche, HTTPS + auth",
          run: async () => {
            const { body } = await raw.send("GET", "/v1/files?path=/root/one.bin");
            check(body.equals(data), "what was read is not what was written");
          },
        },
        {
          name: "runsc exec cat",
          run: async () => check((await lab.runsc.exec(["cat", "/tmp/one"])).equals(data), "runsc cat"),
        },
      ],
      targets: [{ arm: "Cloche, HTTPS + auth", against: "runsc exec cat", atMost: 0.75 }],
    },
  ];
  const close = async (): Promise<void> => {
    raw.close();
    await sandbox.delete();
  };
  return { cells, close };
}
