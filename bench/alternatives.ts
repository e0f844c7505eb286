/** What else one would run a command in, from Debian: crun and bubblewrap, on the very root that the sandboxes have. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { ensureDebianPackages } from "../tests/fixtures/debian-packages.ts";

const run = promisify(execFile);

export class Alternatives {
  readonly #folder: string;
  readonly #root: string;
  readonly #holder: ChildProcess;
  #next = 0;

  private constructor(folder: string, root: string, holder: ChildProcess) {
    this.#folder = folder;
    this.#root = root;
    this.#holder = holder;
  }

  /** Installs both where they are missing. `root` is a root file system, only read. */
  static async open(root: string): Promise<Alternatives> {
    ensureDebianPackages({ crun: "crun", bubblewrap: "bwrap" });
    const folder = await mkdtemp(join(tmpdir(), "cloche-bench-crun-"));
    // This crun refuses a machine with cgroups of the older kind: it runs in a mount namespace that shows the newer alone.
    const script = "mount -t cgroup2 none /sys/fs/cgroup && echo ready && exec sleep infinity";
    const holder = spawn("unshare", ["-m", "--propagation", "private", "sh", "-c", script], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    if (holder.stdout !== null) await once(holder.stdout, "data");
    const made = new Alternatives(folder, root, holder);
    await made.#crun("run", "-d", "-b", await made.#bundle("sleeper", ["sleep", "100000"]), "sleeper");
    return made;
  }

  /** `crun run` of a command to its end. */
  async crunRun(command: string[]): Promise<void> {
    this.#next += 1;
    const name = `c${this.#next}`;
    await this.#crun("run", "-b", await this.#bundle(name, command), name);
  }

  /** `crun exec` in a running container. */
  async crunExec(command: string[]): Promise<void> {
    await this.#crun("exec", "sleeper", ...command);
  }

  async bwrap(command: string[]): Promise<void> {
    const flags = ["--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"];
    await run("bwrap", ["--ro-bind", this.#root, "/", ...flags, "--tmpfs", "/tmp", ...command]);
  }

  async close(): Promise<void> {
    await this.#crun("delete", "-f", "sleeper").catch(() => undefined);
    const ended = once(this.#holder, "exit");
    this.#holder.kill("SIGKILL");
    await ended;
    await rm(this.#folder, { recursive: true, force: true });
  }

  /** Output goes nowhere: a detached container would hold a pipe open. */
  async #crun(...words: string[]): Promise<void> {
    const nsenter = ["-t", String(this.#holder.pid), "-m", "--"];
    const flags = ["--root", join(this.#folder, "state"), "--cgroup-manager", "disabled"];
    const child = spawn("nsenter", [...nsenter, "crun", ...flags, ...words], { stdio: "ignore" });
    const [code] = (await once(child, "exit")) as [number | null];
    if (code !== 0) throw new Error(`crun ${words[0]} ended with ${code}`);
  }

  async #bundle(name: string, args: string[]): Promise<string> {
    const namespaces = ["pid", "ipc", "uts", "mount", "network"].map((type) => ({ type }));
    const config = {
      ociVersion: "1.0.2",
      process: { user: { uid: 0, gid: 0 }, args, cwd: "/", env: ["PATH=/usr/local/bin:/usr/bin:/bin"] },
      root: { path: this.#root, readonly: true },
      hostname: "bench",
      mounts: [
        { destination: "/proc", type: "proc", source: "proc" },
        { destination: "/tmp", type: "tmpfs", source: "tmpfs" },
      ],
      linux: { namespaces },
    };
    const bundle = join(this.#folder, name);
    await mkdir(bundle, { recursive: true });
    await writeFile(join(bundle, "config.json"), JSON.stringify(config));
    return bundle;
  }
}
