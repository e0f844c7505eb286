// The one piece that a saved state becomes: what the sentry reads stays the same, and what is not such a state is left alone.
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { obtainKeeper } from "../../packages/host/src/machine/gvisor/keeper.ts";
import { run } from "../../packages/host/src/sys/run.ts";
import { cacheDir } from "./lab.ts";

const hashBytes = 32;

/** As the sentry writes it: magic, length of the metadata, metadata, its hash. */
function head(compression: string, magic = "gVisorSF"): Buffer {
  const metadata = Buffer.from(JSON.stringify({ _timestamp: "now", compression }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(metadata.length));
  return Buffer.concat([Buffer.from(magic), length, metadata, Buffer.alloc(hashBytes, 0x5a)]);
}

function piece(bytes: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

/** Pieces of 1 to 5 bytes, and what they are together. */
function pieces(count: number): { written: Buffer; read: Buffer } {
  const parts = Array.from({ length: count }, (_, n) => Buffer.alloc((n % 5) + 1, n % 251));
  return { written: Buffer.concat(parts.map(piece)), read: Buffer.concat(parts) };
}

describe("a saved state", () => {
  let folder: string;
  let keeper: string;
  beforeAll(async () => {
    folder = await mkdtemp("/var/tmp/cloche-test-state-");
    keeper = await obtainKeeper(cacheDir, () => undefined);
  });
  afterAll(() => rm(folder, { recursive: true }));

  const joined = async (state: Buffer): Promise<Buffer> => {
    const path = join(folder, "checkpoint.img");
    await writeFile(path, state);
    await run([keeper, "join", path]);
    return await readFile(path);
  };

  it("becomes one piece of the same bytes, and stays so", async () => {
    const { written, read } = pieces(100_000);
    const one = Buffer.concat([head("none"), piece(read)]);
    expect((await joined(Buffer.concat([head("none"), written]))).equals(one)).toBe(true);
    expect((await joined(one)).equals(one)).toBe(true);
  });

  const { written } = pieces(1_000);
  it.each([
    ["whose last piece is cut short", Buffer.concat([head("none"), written.subarray(0, -1)])],
    ["with a piece longer than the file", Buffer.concat([head("none"), written, Buffer.alloc(8, 0xff)])],
    ["that ends within a length", Buffer.concat([head("none"), written, Buffer.alloc(2)])],
    ["that is compressed", Buffer.concat([head("flate-best-speed"), written])],
    ["of another format", Buffer.concat([head("none", "gVisorXX"), written])],
    [
      "with metadata longer than the file",
      Buffer.concat([Buffer.from("gVisorSF"), Buffer.alloc(8, 0xff), written]),
    ],
    ["of nothing", Buffer.alloc(0)],
  ])("%s is left as it is", async (_what, state) => {
    expect((await joined(state)).equals(state)).toBe(true);
  });
});
