// Cloche on a lab node, installed by the chart as docs/kubernetes.md says: PostgreSQL and an S3 server beside it on the node.
import { randomBytes } from "node:crypto";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { cacheFolder, repositoryRoot } from "../fixtures/service.ts";
import { makeDatabase, removeDatabase } from "../lab/database.ts";
import { endProgram, startProgram } from "../lab/node-process.ts";
import { obtainVersitygw } from "../lab/versitygw.ts";
import { type Load, startLoad } from "./load.ts";
import { type LabNode, NODE_ADDRESS } from "./node.ts";
import type { Release } from "./release.ts";

const NAMESPACE = "cloche";
const RELEASE = "demo";
const DEPLOYMENTS = [`deploy/${RELEASE}-gateway`, `deploy/${RELEASE}-edge`];
const S3_PORT = 7_000;
const BASE_DOMAIN = "cloche.test";
/** No DNS server runs on the node: what has to be found has a fixed address of a service. */
const ADDRESSES = { gateway: "10.98.0.20", cluster: "10.98.0.21", edge: "10.98.0.30" };
const POOL_GB = 8;
/** As long as the chart's startup probe waits: a host's first start copies its artifacts and makes a pool. */
const FIRST_START_MS = 600_000;

export type Part = "gateway" | "edge" | "host";

export interface Counted {
  count: number;
  pid: number;
  /** When the process started: a pid alone may be another's. */
  start: string;
  failed: number;
  errors: string[];
}

interface Pod {
  metadata: { name: string; uid: string; deletionTimestamp?: string };
  spec: { nodeName?: string };
  status: { containerStatuses?: { ready: boolean; restartCount: number }[] };
}

/** As `cloche hosts --json` has it. */
export interface HostSeen {
  id: string;
  state: string;
  reserved_memory_mb: number;
}

export class LabCluster {
  readonly #node: LabNode;
  readonly #undo: (() => Promise<unknown>)[] = [];
  #client: Record<string, string> = {};
  #storageUrl = "";

  constructor(node: LabNode) {
    this.#node = node;
  }

  /** Database, storage, secrets, release, join tokens; answers when a host is ready. */
  async install(release: Release): Promise<void> {
    const node = this.#node;
    const databaseUrl = await this.#database();
    this.#storageUrl = await this.#storage();
    await node.kubectl("create", "namespace", NAMESPACE);
    await this.#secret("cloche-database", { url: databaseUrl });
    await this.#secret("cloche-storage", { "access-key-id": "key", "secret-access-key": "secret" });
    await this.#secret("cloche-secret", { secret: randomBytes(48).toString("base64") });
    await this.#helm("install", release);
    await this.#ready("gateway", 2);
    const [host, edge] = await Promise.all(["host", "edge"].map((role) => this.#joinToken(role)));
    await this.#secret("cloche-join-tokens", { host: host ?? "", edge: edge ?? "" });
    await this.#ready("edge", 2);
    await this.runHostsOn(node);
    await this.#becomeClient();
  }

  /** Answers when its host is ready. */
  async runHostsOn(node: LabNode): Promise<void> {
    await node.kubectl("label", "node", node.name, "cloche-host=true");
    const serves = async (): Promise<boolean> => (await this.hostPod(node)) !== "";
    await this.#node.until(`the host of ${node.name} is ready`, serves, FIRST_START_MS);
  }

  /** Answers when all gateways and edges are of this release; hosts are when their pods have been deleted. */
  async upgrade(release: Release): Promise<void> {
    await this.#helm("upgrade", release);
    await this.rolledOut();
  }

  /** Gateways and edges are replaced by pods on the one node of two: the scheduler may have put them anywhere. */
  async restartOn(node: LabNode, other: LabNode): Promise<void> {
    await node.kubectl("cordon", other.name);
    await this.kubectl("rollout", "restart", ...DEPLOYMENTS);
    await this.rolledOut();
    await node.kubectl("uncordon", other.name);
  }

  /** Answers when as many gateways and edges are ready as there should be. */
  async rolledOut(): Promise<void> {
    for (const deployment of DEPLOYMENTS)
      await this.kubectl("rollout", "status", deployment, "--timeout=180s");
  }

  async close(): Promise<void> {
    for (const undo of this.#undo.toReversed()) await undo().catch((error: unknown) => console.error(error));
  }

  kubectl(...words: string[]): Promise<string> {
    return this.#node.kubectl("--namespace", NAMESPACE, ...words);
  }

  /** An operator's command, as it is given in a gateway. */
  cloche(...words: string[]): Promise<string> {
    return this.kubectl("exec", `deploy/${RELEASE}-gateway`, "--", "cloche", ...words);
  }

  async create(): Promise<string> {
    return ((await this.#ask("create")) as { id: string }).id;
  }

  async delete(id: string): Promise<void> {
    await this.#ask("delete", id);
  }

  /** `requests` execs, one after the other. */
  async count(id: string, requests: number): Promise<Counted> {
    return (await this.#ask("ask", id, String(requests))) as Counted;
  }

  /** Requests to the sandbox without end, of a client of its own. */
  load(id: string): Promise<Load> {
    return startLoad([...this.#node.on, ...CLIENT, "load", id], this.#client);
  }

  /** Uid and restarts of the host's pod that is ready; empty: none is. */
  async hostPod({ name } = this.#node): Promise<string> {
    const ready = (await this.#pods("host")).find((pod) => pod.spec.nodeName === name && isReady(pod));
    return ready ? `${ready.metadata.uid} ${ready.status.containerStatuses?.[0]?.restartCount}` : "";
  }

  /** Of each pod, what the program in it says. */
  async versions(part: Part): Promise<string[]> {
    const pods = (await this.#pods(part)).filter(isReady);
    return await Promise.all(
      pods.map(async ({ metadata }) => {
        const said = await this.kubectl("exec", metadata.name, "--", "cloche", "status", "--json");
        return (JSON.parse(said) as { version: string }).version;
      }),
    );
  }

  /** Of each pod that is ready. */
  async nodesOf(part: Part): Promise<string[]> {
    return (await this.#pods(part)).filter(isReady).map(({ spec }) => spec.nodeName ?? "");
  }

  async hosts(): Promise<HostSeen[]> {
    return (JSON.parse(await this.cloche("hosts", "--json")) as { hosts: HostSeen[] }).hosts;
  }

  async #pods(part: Part): Promise<Pod[]> {
    const said = await this.kubectl("get", "pods", "-l", selectorOf(part), "-o", "json");
    return (JSON.parse(said) as { items: Pod[] }).items;
  }

  async #database(): Promise<string> {
    const place = { on: this.#node.on, address: NODE_ADDRESS, mark: {} };
    const database = await makeDatabase(place);
    this.#undo.push(() => removeDatabase(database, place));
    return database.url;
  }

  async #storage(): Promise<string> {
    const versitygw = await obtainVersitygw(cacheFolder, (step, detail) => console.error(step, detail ?? ""));
    const folders = ["data/bucket", "meta"].map((name) => join(this.#node.folder, "s3", name));
    for (const folder of folders) mkdirSync(folder, { recursive: true });
    const serves = `${NODE_ADDRESS}:${S3_PORT}`;
    const [data, meta] = [join(this.#node.folder, "s3/data"), join(this.#node.folder, "s3/meta")];
    const argv = [...this.#node.on, versitygw, "--port", serves, "posix", "--sidecar", meta, data];
    const env = { ...process.env, ROOT_ACCESS_KEY: "key", ROOT_SECRET_KEY: "secret" };
    const logFile = join(this.#node.folder, "s3/log");
    const server = await startProgram(argv, { env, cwd: "/", logFile });
    this.#undo.push(() => endProgram(server, "SIGTERM"));
    const answers = ["sh", "-c", `curl -s -o /dev/null http://${serves}/`];
    await this.#node.until("the S3 server answers", async () => (await this.#node.in(answers)) === "");
    return `s3://bucket/cloche?endpoint=http://${serves}`;
  }

  async #secret(name: string, values: Record<string, string>): Promise<void> {
    const metadata = { name, namespace: NAMESPACE };
    await this.#node.apply({ apiVersion: "v1", kind: "Secret", metadata, stringData: values });
  }

  async #joinToken(role: string): Promise<string> {
    return (await this.cloche("join-token", role, "--reusable")).trim();
  }

  async #helm(command: "install" | "upgrade", { chart }: Release): Promise<void> {
    const sets = Object.entries(this.#values()).flatMap(([name, value]) => [
      "--set-json",
      `${name}=${JSON.stringify(value)}`,
    ]);
    await this.#node.helm(command, RELEASE, chart, "--namespace", NAMESPACE, ...sets);
  }

  /** Small, and with addresses; the images' tag is the chart's own. */
  #values(): Record<string, unknown> {
    const resources = { requests: { cpu: "100m", memory: "256Mi" } };
    return {
      image: { pullPolicy: "Never" },
      baseDomain: BASE_DOMAIN,
      storage: { url: this.#storageUrl },
      cluster: { gateways: [`${ADDRESSES.cluster}:7090`] },
      extraEnv: [
        { name: "CLOCHE_WARM_POOL", value: "1" },
        { name: "CLOCHE_WARM_POOL_MAX", value: "1" },
      ],
      gateway: {
        service: { clusterIP: ADDRESSES.gateway },
        clusterService: { clusterIP: ADDRESSES.cluster },
        resources,
      },
      edge: { service: { type: "ClusterIP", clusterIP: ADDRESSES.edge }, resources },
      host: { poolGb: POOL_GB, resources },
      networkPolicy: { databasePorts: [5432], storagePorts: [S3_PORT] },
    };
  }

  #ready(part: Part, count: number): Promise<number> {
    return this.#node.until(
      `${count} pods of ${part} are ready`,
      async () => (await this.#pods(part)).filter(isReady).length === count,
    );
  }

  /** As a client outside would: the API key and the authority from a gateway, and the edges' address, since no DNS is there. */
  async #becomeClient(): Promise<void> {
    const read = (path: string): Promise<string> =>
      this.kubectl("exec", `deploy/${RELEASE}-gateway`, "--", "cat", `/home/cloche/${path}`);
    const ca = join(this.#node.folder, "ca.pem");
    await this.#node.in(["sh", "-c", `cat > ${ca}`], { input: await read("tls/ca.pem") });
    this.#client = {
      CLOCHE_URL: `http://${ADDRESSES.gateway}:7080`,
      CLOCHE_API_KEY: (await read("keys/api_key")).trim(),
      CLOCHE_CA_CERT: ca,
      CLOCHE_EDGE_URL: `https://${ADDRESSES.edge}`,
      CLOCHE_BASE_DOMAIN: BASE_DOMAIN,
    };
  }

  async #ask(...words: string[]): Promise<unknown> {
    return JSON.parse(await this.#node.in([...CLIENT, ...words], { env: this.#client }));
  }
}

const CLIENT = [process.execPath, join(repositoryRoot, "tests/kubernetes/client.ts")];

export const selectorOf = (part: Part): string => `app.kubernetes.io/component=${part}`;

const isReady = ({ metadata, status }: Pod): boolean =>
  !metadata.deletionTimestamp && status.containerStatuses?.[0]?.ready === true;
