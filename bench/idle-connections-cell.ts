/** Exec while 1,000 clients are connected to the edge and say nothing (SPECIFICATION.md; issue 7's bound is on the p95). */
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import tls from "node:tls";
import type { Lab } from "./lab.ts";
import type { Batch, Cell } from "./runner.ts";
import { rawClient } from "./sandbox-cells.ts";

const connections = 1_000;
/** Execs between one change of the crowd and the next; connecting it takes seconds. */
const perBatch = 20;
/** Handshakes under way at once. */
const atOnce = 50;

/** 1,000 TLS connections, each through its handshake, no byte of a request on any. */
async function crowd(lab: Lab, servername: string): Promise<tls.TLSSocket[]> {
  const { edge_url, ca_cert } = lab.service.status;
  const { hostname: host, port } = new URL(edge_url);
  const ca = await readFile(ca_cert, "utf8");
  const sockets: tls.TLSSocket[] = [];
  while (sockets.length < connections) {
    const some = Array.from({ length: atOnce }, () =>
      tls.connect({ host, port: Number(port), servername, ca }),
    );
    sockets.push(...some);
    await Promise.all(some.map((socket) => once(socket, "secureConnect")));
  }
  return sockets;
}

export async function idleConnectionsCell(
  lab: Lab,
  samples: number,
): Promise<{ cell: Cell; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-connections" });
  const servername = sandbox.domain.split(":")[0] ?? "";
  const raw = await rawClient(lab, sandbox);
  const execs = async (): Promise<Batch> => {
    const batch: Batch = { timesMs: [], failures: [] };
    for (let n = 0; n < perBatch; n += 1) {
      const beganMs = performance.now();
      const { status } = await raw.send("POST", "/v1/exec", '{"cmd":["true"]}');
      if (status === 200) batch.timesMs.push(performance.now() - beganMs);
      else batch.failures.push(`exec: ${status}`);
    }
    return batch;
  };
  const beside = async (): Promise<Batch> => {
    const sockets = await crowd(lab, servername);
    try {
      const batch = await execs();
      const lost = sockets.filter((socket) => socket.destroyed).length;
      if (lost > 0) batch.failures.push(`${lost} idle connections were closed meanwhile`);
      return batch;
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  };
  const arms = { beside: "beside 1,000 idle connections", without: "without them" };
  const cell: Cell = {
    name: "exec true beside idle connections",
    samples: Math.max(1, Math.ceil(samples / perBatch)),
    warmups: 1,
    arms: [
      { name: arms.beside, run: beside },
      { name: arms.without, run: execs },
    ],
    targets: [{ arm: arms.beside, against: arms.without, atMost: 1.5, percentile: 95, from: "issue 7" }],
  };
  const close = async (): Promise<void> => {
    raw.close();
    await sandbox.delete();
  };
  return { cell, close };
}
