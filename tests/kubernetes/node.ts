// A real Kubernetes node of one's own (node.sh), as the tests drive it. Owns one folder, and all that the node starts. A second one
// can join it: that is a cluster of two nodes on one computer.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { OciLayout } from "../../deploy/images/oci-layout.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { buildPause, type NodePrograms } from "./programs.ts";

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
/** Of the first node. */
export const NODE_ADDRESS = "10.99.0.1";
const LONG_MS = 10 * 60_000;
/** A proxy of this computer is not the node's: nothing in it is reached through one. */
const NO_PROXY = { http_proxy: "", https_proxy: "", HTTP_PROXY: "", HTTPS_PROXY: "", ALL_PROXY: "" };

export class LabNode {
  readonly folder: string;
  /** As Kubernetes knows it. */
  readonly name: string;
  readonly #env: Readonly<Record<string, string>>;
  readonly #clients: string;

  /** `clients`: folder of kubectl and helm. `first`: the node that this one joins. */
  constructor(folder: string, programs: NodePrograms, clients: string, first?: LabNode) {
    const id = first === undefined ? "1" : "2";
    this.folder = folder;
    this.name = `n${id}`;
    this.#clients = clients;
    this.#env = {
      NODE: folder,
      FIRST: first?.folder ?? folder,
      ID: id,
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
    await this.importImages(await this.#pauseImage());
    await this.until(`${this.name} is ready`, async () => {
      const said = await this.kubectl("get", "node", this.name, "--no-headers");
      return / Ready /.test(said);
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

  async #pauseImage(): Promise<string> {
    const [program, folder] = [join(this.folder, "pause"), join(this.folder, "pause-oci")];
    const archive = join(this.folder, "pause.tar");
    await buildPause(here("pause.c"), program);
    const layout = await OciLayout.open(folder);
    const layer = await layout.layerOfTar(["--owner=0", "--group=0", "-C", program, "pause"]);
    const config = { entrypoint: ["/pause"], env: [], labels: {} };
    const architecture = process.arch === "x64" ? "amd64" : process.arch;
    await layout.image("cloche.test/pause:1", architecture, [layer], config);
    await layout.close();
    await run(["tar", "-cf", archive, "-C", folder, "."]);
    return archive;
  }

  #script(command: string): Promise<unknown> {
    return run([here("node.sh"), command], { env: { ...this.#env }, deadlineMs: LONG_MS });
  }
}
