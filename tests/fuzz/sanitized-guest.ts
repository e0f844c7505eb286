// The guest program compiled with the sanitizers, started on a root of its own, and spoken to in raw frames. A memory error ends
// it, and `problems` says which.
import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { promisify } from "node:util";
import { nativeSources } from "@cloche/agent/build-native";
import { type Frame, FrameReader } from "../../packages/agent/src/spawner/wire.ts";
import { makeDisk } from "../guest/guest-fixture.ts";

const sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
const flags = ["-std=gnu17", "-g", "-O1", "-pthread", "-D_GNU_SOURCE", "-fno-stack-protector", "-w"];

/** Kept by its sources. Launchers run beside init on its memory, where no instrumentation may run: launcher.c goes without. */
export async function sanitizedBinary(): Promise<string> {
  const sources = await nativeSources();
  const hash = createHash("sha256");
  for (const path of sources) hash.update(readFileSync(path));
  const binary = join(tmpdir(), `cloche-guest-sanitized-${hash.digest("hex").slice(0, 16)}`);
  if (existsSync(binary)) return binary;
  const unfinished = `${binary}.${process.pid}`;
  const run = promisify(execFile);
  const objects = await Promise.all(
    sources
      .filter((path) => path.endsWith(".c"))
      .map(async (path, index) => {
        const object = `${unfinished}-${index}.o`;
        const with_ = path.endsWith("/launcher.c") ? [] : sanitizers;
        await run("gcc", [...flags, ...with_, "-c", "-o", object, path]);
        return object;
      }),
  );
  // The guest's first act is to let go of its standard error, which is where the sanitizers speak.
  const launcher = `${unfinished}.c`;
  writeFileSync(
    launcher,
    `int __real_dup2(int, int);
     int __wrap_dup2(int from, int to) { static int kept; return to == 2 && !kept++ ? 2 : __real_dup2(from, to); }`,
  );
  await run("gcc", [...flags, ...sanitizers, "-Wl,--wrap=dup2", "-o", unfinished, launcher, ...objects]);
  rmSync(launcher);
  for (const object of objects) rmSync(object);
  renameSync(unfinished, binary);
  return binary;
}

export class SanitizedGuest {
  readonly #disk: string;
  readonly init: Duplex;
  readonly files: Duplex;
  /** Frames that came, newest last; bounded. */
  readonly frames: Frame[] = [];
  readonly ended: Promise<void>;
  hasEnded = false;
  #said = "";
  #onExit: () => void = () => undefined;

  private constructor(disk: string, init: Duplex, files: Duplex) {
    this.#disk = disk;
    this.init = init;
    this.files = files;
    this.ended = new Promise((resolve) => {
      this.#onExit = () => {
        this.hasEnded = true;
        resolve();
      };
    });
    for (const stream of [init, files]) {
      const reader = new FrameReader();
      stream.on("error", () => undefined);
      stream.on("data", (chunk: Buffer) =>
        reader.push(chunk, (frame) => {
          this.frames.push({ ...frame, payload: Buffer.from(frame.payload) });
          if (this.frames.length > 1_000) this.frames.shift();
        }),
      );
    }
  }

  static async start(): Promise<SanitizedGuest> {
    const disk = makeDisk();
    const words = [
      "guest",
      "--root",
      join(disk, "fs"),
      "--bind-ro",
      "/usr:/usr",
      "--tmpfs",
      "/tmp",
      "--max-processes",
      "64",
    ];
    const child = spawn(await sanitizedBinary(), words, {
      stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"],
      env: { ASAN_OPTIONS: "detect_leaks=0" },
    });
    const guest = new SanitizedGuest(disk, child.stdio[3] as Duplex, child.stdio[4] as Duplex);
    child.stderr?.on("data", (chunk: Buffer) => {
      guest.#said = (guest.#said + chunk.toString()).slice(0, 20_000);
    });
    // With its standard error: what was said is complete.
    child.once("close", guest.#onExit);
    return guest;
  }

  /** What the sanitizers said. */
  problems(): string {
    return this.#said;
  }

  async close(): Promise<void> {
    this.init.destroy();
    this.files.destroy();
    await this.ended;
    rmSync(this.#disk, { recursive: true, force: true });
  }
}
