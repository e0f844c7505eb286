// A real Kubernetes node of one's own (node.sh), as the tests drive it. Owns one folder, and all that the node starts.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { OciLayout } from "../../deploy/images/oci-layout.ts";
import { run } from "../../packages/host/src/sys/run.ts";
import { buildPause, type NodePrograms } from "./programs.ts";

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
export const NODE_ADDRESS = "10.99.0.1";
const LONG_MS = 10 * 60_000;
/** A proxy of this computer is not the node's: nothing in it is reached through one. */
const NO_PROXY = { http_proxy: "", https_proxy: "", HTTP_PROXY: "", HTTPS_PROXY: "", ALL_PROXY: "" };

export class LabNode {
  readonly folder: string;
  readonly #env: Readonly<Record<string, string>>;
  readonly #clients: string;

  /** `clients`: folder of kubectl and helm. */
  constructor(folder: string, programs: NodePrograms, clients: string) {
    this.folder = folder;
    this.#clients = clients;
    this.#env = {
      NODE: folder,
      PROGRAMS: [...programs.folders, clients].join(":"),
      CNI: programs.cni,
      ...NO_PROXY,
    };
  }

  /** Words before a command that make it run in the node. */
  get on(): string[] {
    return [
      "env",
      ...Object.entries(this.#env).map(([name, value]) => `${name}=${value}`),
      here("node.sh"),
      "in",
    ];
  }

  async start(): Promise<void> {
    await mkdir(this.folder, { recursive: true });
    await this.#script("up");
    await buildPause(here("pause.c"), join(this.folder, "pause"));
    const layout = await OciLayout.open(join(this.folder, "pause-oci"));
    const layer = await layout.layerOfTar([
      "--owner=0",
      "--group=0",
      "-C",
      join(this.folder, "pause"),
      "pause",
    ]);
    const config = { entrypoint: ["/pause"], env: [], labels: {} };
    await layout.image(
      "cloche.test/pause:1",
      process.arch === "x64" ? "amd64" : process.arch,
      [layer],
      config,
    );
    await layout.close();
    const archive = join(this.folder, "pause.tar");
    await run(["tar", "-cf", archive, "-C", join(this.folder, "pause-oci"), "."]);
    await this.importImages(archive);
    await this.until("the node is ready", async () => {
      const nodes = await this.kubectl("get", "nodes", "--no-headers");
      return / Ready /.test(nodes);
    });
  }

  stop(): Promise<unknown> {
    return this.#script("down");
  }

  /** Pinned: the node's disk is this computer's, and its collection of old images must not take ours. */
  async importImages(archive: string): Promise<void> {
    const pinned = ["--label", "io.cri-containerd.pinned=pinned"];
    await this.in(["ctr", "-n", "k8s.io", "images", "import", ...pinned, archive]);
  }

  async in(
    argv: readonly string[],
    options: { input?: string; env?: Record<string, string> } = {},
  ): Promise<string> {
    const [program = "", ...words] = [...this.on, ...argv];
    return (await run([program, ...words], { deadlineMs: LONG_MS, ...options })).stdout;
  }

  kubectl(...words: string[]): Promise<string> {
    return this.in([join(this.#clients, "kubectl"), ...words]);
  }

  apply(manifest: object): Promise<string> {
    return this.in([join(this.#clients, "kubectl"), "apply", "-f", "-"], { input: JSON.stringify(manifest) });
  }

  helm(...words: string[]): Promise<string> {
    return this.in([join(this.#clients, "helm"), ...words]);
  }

  /** Ends kubelet by this signal, or containerd by SIGKILL, and starts it again. */
  async restart(program: "kubelet" | "containerd", signal = ""): Promise<void> {
    await this.in([here("node.sh"), program, ...(signal === "" ? [] : [signal])], { env: { ...this.#env } });
  }

  async until(what: string, is: () => Promise<boolean>, deadlineMs = 180_000): Promise<number> {
    const startedAt = performance.now();
    for (;;) {
      if (await is().catch(() => false)) return Math.round(performance.now() - startedAt);
      if (performance.now() - startedAt > deadlineMs)
        throw new Error(`not within ${deadlineMs / 1_000} s: ${what}`);
      await sleep(250);
    }
  }

  #script(command: string): Promise<unknown> {
    return run([here("node.sh"), command], { env: { ...this.#env }, deadlineMs: LONG_MS });
  }
}
