// Cloche on a lab node, installed by the chart as docs/kubernetes.md says: PostgreSQL and an S3 server beside it on the node.
import { randomBytes } from "node:crypto";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { cacheFolder, repositoryRoot } from "../fixtures/service.ts";
import { makeDatabase, removeDatabase } from "../lab/database.ts";
import { endProgram, startProgram } from "../lab/node-process.ts";
import { obtainVersitygw } from "../lab/versitygw.ts";
import { type LabNode, NODE_ADDRESS } from "./node.ts";

const NAMESPACE = "cloche";
const RELEASE = "demo";
const S3_PORT = 7_000;
const BASE_DOMAIN = "cloche.test";
/** No DNS server runs on the node: what has to be found has a fixed address of a service. */
const ADDRESSES = { gateway: "10.98.0.20", cluster: "10.98.0.21", edge: "10.98.0.30" };
const POOL_GB = 8;

export interface Counted {
  count: number;
  pid: number;
  /** When the process started: a pid alone may be another's. */
  start: string;
  failed: number;
  errors: string[];
}

export class LabCluster {
  readonly #node: LabNode;
  readonly #undo: (() => Promise<unknown>)[] = [];
  #client: Record<string, string> = {};

  constructor(node: LabNode) {
    this.#node = node;
  }

  /** Database, storage, secrets, release, join tokens; answers when a host is ready. */
  async install(tag: string): Promise<void> {
    const node = this.#node;
    const databaseUrl = await this.#database();
    const storageUrl = await this.#storage();
    await node.kubectl("create", "namespace", NAMESPACE);
    await this.#secret("cloche-database", { url: databaseUrl });
    await this.#secret("cloche-storage", { "access-key-id": "key", "secret-access-key": "secret" });
    await this.#secret("cloche-secret", { secret: randomBytes(48).toString("base64") });
    await node.kubectl("label", "node", "n1", "cloche-host=true");
    await this.#helm("install", tag, storageUrl);
    await this.#ready("gateway", 2);
    const [host, edge] = await Promise.all(["host", "edge"].map((role) => this.#joinToken(role)));
    await this.#secret("cloche-join-tokens", { host: host ?? "", edge: edge ?? "" });
    await this.#ready("edge", 1);
    await this.#ready("host", 1);
    await this.#becomeClient();
    this.#storageUrl = storageUrl;
  }
  #storageUrl = "";

  async uninstall(): Promise<void> {
    await this.#node.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait");
  }

  /** Gateways and edges are replaced at once, hosts when their pods are deleted. */
  async upgrade(tag: string): Promise<void> {
    await this.#helm("upgrade", tag, this.#storageUrl);
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

  /** Uid and restarts of the host's pod that is ready; empty: none is. */
  async hostPod(): Promise<string> {
    const selector = "app.kubernetes.io/component=host";
    const pods = JSON.parse(await this.kubectl("get", "pods", "-l", selector, "-o", "json")) as {
      items: {
        metadata: { name: string; uid: string; deletionTimestamp?: string };
        status: { containerStatuses?: { ready: boolean; restartCount: number; image: string }[] };
      }[];
    };
    const ready = pods.items.find(
      ({ metadata, status }) => !metadata.deletionTimestamp && status.containerStatuses?.[0]?.ready,
    );
    return ready ? `${ready.metadata.uid} ${ready.status.containerStatuses?.[0]?.restartCount}` : "";
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

  async #helm(command: "install" | "upgrade", tag: string, storageUrl: string): Promise<void> {
    const values = {
      image: { tag, pullPolicy: "Never" },
      baseDomain: BASE_DOMAIN,
      storage: { url: storageUrl },
      cluster: { gateways: [`${ADDRESSES.cluster}:7090`] },
      extraEnv: [
        { name: "CLOCHE_WARM_POOL", value: "1" },
        { name: "CLOCHE_WARM_POOL_MAX", value: "1" },
      ],
      gateway: {
        service: { clusterIP: ADDRESSES.gateway },
        clusterService: { clusterIP: ADDRESSES.cluster },
        resources: { requests: { cpu: "100m", memory: "256Mi" } },
      },
      edge: {
        replicas: 1,
        service: { type: "ClusterIP", clusterIP: ADDRESSES.edge },
        resources: { requests: { cpu: "100m", memory: "256Mi" } },
      },
      host: { poolGb: POOL_GB, resources: { requests: { cpu: "100m", memory: "256Mi" } } },
      networkPolicy: { databasePorts: [5432], storagePorts: [S3_PORT] },
    };
    const sets = Object.entries(values).flatMap(([name, value]) => [
      "--set-json",
      `${name}=${JSON.stringify(value)}`,
    ]);
    const chart = join(repositoryRoot, "deploy/helm/cloche");
    await this.#node.helm(command, RELEASE, chart, "--namespace", NAMESPACE, ...sets);
  }

  #ready(part: string, count: number): Promise<number> {
    return this.#node.until(`${count} pods of ${part} are ready`, async () => {
      const selector = `app.kubernetes.io/component=${part}`;
      const lines = await this.kubectl("get", "pods", "-l", selector, "--no-headers");
      return lines.split("\n").filter((line) => / 1\/1 +Running/.test(line)).length === count;
    });
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
    const argv = [process.execPath, join(repositoryRoot, "tests/kubernetes/client.ts"), ...words];
    return JSON.parse(await this.#node.in(argv, { env: this.#client }));
  }
}
