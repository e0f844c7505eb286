/** Files of 256 MiB up and down through HTTPS with auth, against a bare node:https server that reads and writes the same disk. */
import { execFile, execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, open, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";

const run = promisify(execFile);

const sizeMib = Number(process.env["CLOCHE_BENCH_FILE_MIB"] || "256");

/** What curl's arguments say: where to, as whom. */
type Aim = readonly string[];

export async function largeFileCells(
  lab: Lab,
  samples: number,
): Promise<{ cells: Cell[]; close(): Promise<void> }> {
  // On the file system that sandboxes' disks lie on.
  const folder = await mkdtemp(join(lab.service.home, "bench-files-"));
  const source = join(folder, "source");
  await fill(source);
  const certFile = join(folder, "cert.pem");
  const keyFile = join(folder, "key.pem");
  const subject = ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1"];
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", keyFile];
  execFileSync("openssl", ["req", "-x509", ...key, "-out", certFile, "-days", "2", ...subject], {
    stdio: "ignore",
  });
  const words = [new URL("edge-servers.ts", import.meta.url).pathname, "files", certFile, keyFile, folder];
  const server = spawn(process.execPath, words, { stdio: ["pipe", "pipe", "inherit"] });
  const port = Number(String((await once(server.stdout, "data"))[0]));
  const sandbox = await lab.cloche.create({ name: "bench-large", disk_mb: 4096 });
  const { jwt } = await lab.cloche.gateway.issueDataPlaneToken(sandbox.id);
  const { ca_cert, edge_url } = lab.service.status;
  const edgePort = new URL(edge_url).port;
  const name = sandbox.domain.split(":")[0] ?? "";
  const cloche: Aim = [
    "--cacert",
    ca_cert,
    "--resolve",
    `${name}:${edgePort}:127.0.0.1`,
    "--header",
    `authorization: Bearer ${jwt}`,
    `https://${name}:${edgePort}/v1/files?path=/root/large`,
  ];
  const bare: Aim = ["--cacert", certFile, `https://127.0.0.1:${port}/large`];
  const put = async (aim: Aim): Promise<void> => void (await curl("--upload-file", source, ...aim));
  const get = async (aim: Aim): Promise<void> => {
    const bytes = await curl("--write-out", "%{size_download}", "--output", "/dev/null", ...aim);
    if (Number(bytes) !== sizeMib * 1_048_576) throw new Error(`${bytes} bytes came`);
  };
  for (const aim of [cloche, bare]) await put(aim);
  const cell = (title: "up" | "down", move: (aim: Aim) => Promise<void>): Cell => ({
    name: `${sizeMib} MiB ${title} with curl`,
    samples,
    warmups: 1,
    arms: [
      { name: `Cloche, ${title}`, run: () => move(cloche) },
      { name: `bare node:https, ${title}`, run: () => move(bare) },
    ],
    targets: [{ arm: `Cloche, ${title}`, against: `bare node:https, ${title}`, atMost: 2.5 }],
  });
  const close = async (): Promise<void> => {
    server.stdin.end();
    await rm(folder, { recursive: true });
    await sandbox.delete();
  };
  return { cells: [cell("up", put), cell("down", get)], close };
}

async function curl(...words: string[]): Promise<string> {
  const { stdout } = await run("curl", ["--silent", "--show-error", "--fail", "--http1.1", ...words]);
  return stdout;
}

async function fill(path: string): Promise<void> {
  const file = await open(path, "w");
  for (let mib = 0; mib < sizeMib; mib += 1) await file.write(randomBytes(1_048_576));
  await file.close();
}
