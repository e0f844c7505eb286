/** A service of the benchmark's own, clients of it, and bare runsc on the same root for comparison. */
import { execFile, spawn } from "node:child_process";
import { mkdir, mkdtemp, readdir, rm, stat, writeFile } from "node:fs/promises";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import type { connect } from "@cloche/sdk/node";
import { cacheFolder, startService, type TestService } from "../tests/fixtures/service.ts";
import { freePort } from "../tests/oci/registry-fixture.ts";
import { clientOf } from "./client.ts";

const run = promisify(execFile);

/** A service of the benchmark's own, and its client. */
export interface PooledService {
  service: TestService;
  cloche: ReturnType<typeof connect>;
  /** Machines kept ready, of each kind, before anything was asked for at once. */
  poolSize: number;
  /** Resolves when all is ready that is wanted now: nothing of what was measured before still costs. Throws when it never is. */
  poolFull(): Promise<void>;
  close(): Promise<void>;
}

export interface Lab extends PooledService {
  runsc: BareRunsc;
}

const poolDeadlineMs = 180_000;

export async function openLab(): Promise<Lab> {
  const pooled = await openPooled();
  try {
    const runsc = await BareRunsc.open();
    return {
      ...pooled,
      runsc,
      async close() {
        await runsc.close();
        await pooled.close();
      },
    };
  } catch (error) {
    await pooled.close();
    throw error;
  }
}

async function openPooled(): Promise<PooledService> {
  const metricsPort = await freePort();
  const service = await startService({
    env: {
      CLOCHE_RUNTIME: "gvisor",
      CLOCHE_METRICS_PORT: String(metricsPort),
      CLOCHE_WARM_POOL: process.env["CLOCHE_WARM_POOL"] ?? "",
    },
  });
  const gauge = async (name: string, kind: string): Promise<number> => {
    const text = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
    return Number(new RegExp(`^${name}\\{[^}]*kind="${kind}"[^}]*\\} (\\d+)`, "m").exec(text)?.[1] ?? 0);
  };
  const ready = (kind: string): Promise<number> => gauge("cloche_ready_machines", kind);
  const wanted = (kind: string): Promise<number> => gauge("cloche_ready_machines_wanted", kind);
  const full = async (kind: string): Promise<boolean> => (await ready(kind)) >= (await wanted(kind));
  try {
    const cloche = await clientOf(service);
    await aged(service.home);
    return {
      service,
      cloche,
      poolSize: await wanted("warm"),
      async poolFull() {
        await until(async () => (await full("warm")) && (await full("blank")));
        await rest();
      },
      async close() {
        await cloche.close();
        await service.destroy();
      },
    };
  } catch (error) {
    await service.destroy();
    throw error;
  }
}

async function until(isSo: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + poolDeadlineMs;
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error("the pool of ready machines was never full");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const templateAgeMs = 150_000;

/** Resolves when the service's template is so old that every timer in it is due: machines out of a young one are faster. */
async function aged(home: string): Promise<void> {
  const templates = join(home, "pool", "templates-gvisor");
  const made = async (): Promise<number | undefined> => {
    const keys = await readdir(templates).catch(() => []);
    const stats = await Promise.all(
      keys.map((key) => stat(join(templates, key, "template.json")).catch(() => undefined)),
    );
    return stats.find((one) => one !== undefined)?.mtimeMs;
  };
  await until(async () => (await made()) !== undefined);
  const leftMs = ((await made()) ?? 0) + templateAgeMs - Date.now();
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, leftMs)));
}

const restMs = 100;
const restShare = 0.1;
const restDeadlineMs = 5_000;

/** Resolves when the processors do next to nothing, or after five seconds: what the sample before left to do is no other's to pay for. */
async function rest(): Promise<void> {
  const deadline = performance.now() + restDeadlineMs;
  for (let before = processorTimes(); performance.now() < deadline; ) {
    await new Promise((resolve) => setTimeout(resolve, restMs));
    const now = processorTimes();
    if (now.busy - before.busy <= (now.all - before.all) * restShare) return;
    before = now;
  }
}

function processorTimes(): { busy: number; all: number } {
  const times = cpus().map(({ times }) => times);
  const idle = times.reduce((sum, one) => sum + one.idle, 0);
  const busy = times.reduce((sum, one) => sum + one.user + one.nice + one.sys + one.irq, 0);
  return { busy, all: idle + busy };
}

/** Newest artifact of a kind in the cache that the service filled. */
export async function artifact(kind: string): Promise<string> {
  const names = (await readdir(cacheFolder)).filter((name) =>
    new RegExp(`^${kind}-[0-9a-f]{16}$`).test(name),
  );
  const dated = await Promise.all(
    names.map(async (name) => ({ name, at: (await stat(join(cacheFolder, name))).atimeMs })),
  );
  dated.sort((a, b) => b.at - a.at);
  if (dated[0] === undefined) throw new Error(`no artifact ${kind} in ${cacheFolder}`);
  return join(cacheFolder, dated[0].name);
}

/** A root that holds one static program, which waits. */
async function tinyRoot(root: string): Promise<string> {
  await Promise.all(["proc", "tmp"].map((name) => mkdir(join(root, name), { recursive: true })));
  const source = join(root, "tiny.c");
  await writeFile(source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n");
  await run("gcc", ["-static", "-Os", "-o", join(root, "tiny"), source]);
  return root;
}

/**
 * What a user would run without Cloche: runsc on the very roots that Cloche uses. No network, so that nothing but the
 * sandbox itself is measured.
 */
export class BareRunsc {
  readonly #folder: string;
  readonly #program: string;
  readonly #userRoot: string;
  readonly #agentRoot: string;
  readonly #tinyRoot: string;
  #next = 0;

  private constructor(folder: string, program: string, roots: { user: string; agent: string; tiny: string }) {
    this.#folder = folder;
    this.#program = program;
    this.#userRoot = roots.user;
    this.#agentRoot = roots.agent;
    this.#tinyRoot = roots.tiny;
  }

  static async open(): Promise<BareRunsc> {
    const folder = await mkdtemp(join(tmpdir(), "cloche-bench-"));
    const program = join(await artifact("gvisor"), "runsc");
    const user = join(await artifact("rootfs"), "fs");
    const roots = { user, agent: await artifact("agent-root"), tiny: await tinyRoot(join(folder, "tiny")) };
    const bare = new BareRunsc(folder, program, roots);
    await bare.#start("sleeper", user, ["sleep", "100000"], true);
    return bare;
  }

  /** `runsc exec` of a command in a running container; `stdin` is piped to it. */
  async exec(command: string[], stdin?: Buffer): Promise<Buffer> {
    return this.#call(["exec", "sleeper", ...command], stdin);
  }

  /** `runsc run` of a command to its end. */
  async runToEnd(command: string[]): Promise<void> {
    const id = await this.#start(this.#name(), this.#userRoot, command, false);
    await this.#call(["delete", "-force", id]);
  }

  /** `runsc checkpoint` of a tiny static program that goes on, and `runsc restore` beside it; both in ms. Floors of several rows. */
  async checkpointAndRestore(): Promise<{ checkpointMs: number; restoreMs: number }> {
    const source = this.#name();
    const clone = this.#name();
    const image = join(this.#folder, `${source}-image`);
    await this.#start(source, this.#tinyRoot, ["/tiny"], true);
    const checkpointFrom = performance.now();
    await this.#call(["checkpoint", "-image-path", image, "-leave-running", source]);
    const checkpointMs = performance.now() - checkpointFrom;
    await this.#bundle(clone, this.#tinyRoot, ["/tiny"]);
    const restoreFrom = performance.now();
    await this.#call(
      ["restore", "-detach", "-bundle", join(this.#folder, clone), "-image-path", image, clone],
      undefined,
      clone,
    );
    const restoreMs = performance.now() - restoreFrom;
    await this.#delete(source);
    await this.#delete(clone);
    await rm(image, { recursive: true, force: true });
    return { checkpointMs, restoreMs };
  }

  /** A Node that does nothing, on the root of Cloche's agents. `mark`: what its processes have on their command lines. */
  async sleepingNode(): Promise<{ mark: string; end(): Promise<void> }> {
    const name = this.#name();
    await this.#start(name, this.#agentRoot, ["/bin/node", "-e", "setInterval(() => {}, 1e9)"], true);
    return { mark: join(this.#folder, name), end: () => this.#delete(name) };
  }

  async close(): Promise<void> {
    await this.#delete("sleeper");
    // runsc pins an empty network namespace there, which nothing else takes away.
    await run("umount", [join(this.#folder, "state", "null-netns")]).catch(() => undefined);
    await rm(this.#folder, { recursive: true, force: true });
  }

  #name(): string {
    this.#next += 1;
    return `c${String(this.#next).padStart(5, "0")}`;
  }

  async #start(name: string, root: string, args: string[], detach: boolean): Promise<string> {
    await this.#bundle(name, root, args);
    await this.#call(
      ["run", ...(detach ? ["-detach"] : []), "-bundle", join(this.#folder, name), name],
      undefined,
      name,
    );
    return name;
  }

  async #bundle(name: string, root: string, args: string[]): Promise<void> {
    const mounts = [
      { destination: "/proc", type: "proc", source: "proc" },
      { destination: "/tmp", type: "tmpfs", source: "tmpfs" },
    ];
    const namespaces = ["pid", "ipc", "uts", "mount", "network"].map((type) => ({ type }));
    const config = {
      ociVersion: "1.0.2",
      process: {
        user: { uid: 0, gid: 0 },
        args,
        cwd: "/",
        env: ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root"],
      },
      root: { path: root, readonly: true },
      hostname: "bench",
      mounts,
      linux: { namespaces },
    };
    await mkdir(join(this.#folder, name), { recursive: true });
    await writeFile(join(this.#folder, name, "config.json"), JSON.stringify(config));
  }

  async #delete(name: string): Promise<void> {
    await this.#call(["delete", "-force", name]).catch(() => undefined);
  }

  /** Output goes to a file where a detached container would hold a pipe open. */
  async #call(words: string[], stdin?: Buffer, logName?: string): Promise<Buffer> {
    const flags = [
      "--platform=systrap",
      "--network=none",
      "--ignore-cgroups",
      "--overlay2=none",
      "--root",
      join(this.#folder, "state"),
    ];
    if (logName !== undefined) {
      const log = join(this.#folder, `${logName}.log`);
      const quoted = [this.#program, ...flags, ...words].map((word) => `'${word}'`).join(" ");
      await run("sh", ["-c", `${quoted} > '${log}' 2>&1 < /dev/null`]);
      return Buffer.alloc(0);
    }
    const child = spawn(this.#program, [...flags, ...words], { stdio: ["pipe", "pipe", "pipe"] });
    const chunks: Buffer[] = [];
    const errors: Buffer[] = [];
    child.stdout.on("data", (chunk: Buffer) => chunks.push(chunk));
    child.stderr.on("data", (chunk: Buffer) => errors.push(chunk));
    child.stdin.on("error", () => undefined);
    child.stdin.end(stdin);
    const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
    if (code !== 0)
      throw new Error(
        `runsc ${words[0]} ended with ${code}: ${Buffer.concat(errors).toString().slice(-300)}`,
      );
    return Buffer.concat(chunks);
  }
}
