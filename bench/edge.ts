/** What the edge adds (SPECIFICATION.md): to the latency of a request, and to its cost under load. Needs no sandbox. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { LoadClient } from "./edge-load.ts";
import type { Cell } from "./runner.ts";

const sandboxId = "sbx-benchbenchbenchbench";
const servername = `${sandboxId}.cloche.localhost`;
const connections = 64;
const requestsPerSample = 4_000;

const path = "/v1/files/stat?path=/root/x";
const authorization = `Bearer ${"t".repeat(700)}`;
const request = (): string =>
  `GET ${path} HTTP/1.1\r\nHost: ${servername}\r\nAuthorization: ${authorization}\r\n` +
  "Accept: */*\r\nUser-Agent: bench\r\n\r\n";

/** The cells, and what ends their servers. `samples` of each arm. */
export async function edgeCells(samples = 15): Promise<{ cells: Cell[]; close(): void }> {
  const folder = mkdtempSync(join(tmpdir(), "cloche-bench-edge-"));
  const certFile = join(folder, "cert.pem");
  const keyFile = join(folder, "key.pem");
  const subject = ["-subj", "/CN=bench", "-addext", "subjectAltName=DNS:*.cloche.localhost"];
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", keyFile];
  execFileSync("openssl", ["req", "-x509", ...key, "-out", certFile, "-days", "2", ...subject], {
    stdio: "ignore",
  });
  const children: ChildProcess[] = [];
  const clients: LoadClient[] = [];
  const serve = async (...words: string[]): Promise<number> => {
    const child = spawn(process.execPath, [new URL("edge-servers.ts", import.meta.url).pathname, ...words], {
      stdio: ["pipe", "pipe", "inherit"],
      env: { ...process.env, CLOCHE_BENCH_LOG: join(folder, "edge.log") },
    });
    children.push(child);
    return Number(String((await once(child.stdout, "data"))[0]));
  };
  const connect = async (target: Parameters<typeof LoadClient.connect>[0]): Promise<LoadClient> => {
    const client = await LoadClient.connect(target, request());
    clients.push(client);
    return client;
  };
  const close = (): void => {
    for (const client of clients) client.close();
    for (const child of children) child.stdin?.end();
    rmSync(folder, { recursive: true });
  };
  try {
    const agent = await serve("agent");
    const echo = await serve("echo", certFile, keyFile);
    const edge = await serve("edge", certFile, keyFile, sandboxId, String(agent));
    const tlsOptions = { ca: readFileSync(certFile, "utf8"), servername };
    const one = {
      agent: await connect({ port: agent }),
      edge: await connect({ port: edge, tls: tlsOptions }),
    };
    const many = async (port: number): Promise<LoadClient[]> =>
      Promise.all(Array.from({ length: connections }, () => connect({ port, tls: tlsOptions })));
    const all = { echo: await many(echo), edge: await many(edge) };
    const load = async (from: LoadClient[]): Promise<void> => {
      const left = { count: requestsPerSample };
      await Promise.all(from.map((client) => client.drain(left)));
    };
    const latency: Cell = {
      name: "edge: one request over TLS, against the agent asked directly",
      samples: samples * 20,
      warmups: 200,
      arms: [
        { name: "edge", run: () => one.edge.ask() },
        { name: "agent", run: () => one.agent.ask() },
      ],
      targets: [{ arm: "edge", against: "agent", atMost: 1.5, unit: "ms-more" }],
    };
    const throughput: Cell = {
      name: `edge: ${requestsPerSample} requests on ${connections} connections, against a bare node:https echo`,
      samples,
      warmups: 2,
      arms: [
        { name: "edge", run: () => load(all.edge) },
        { name: "echo", run: () => load(all.echo) },
      ],
      targets: [{ arm: "edge", against: "echo", atMost: 3.5 }],
    };
    return { cells: [latency, throughput], close };
  } catch (error) {
    close();
    throw error;
  }
}
