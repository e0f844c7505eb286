// The chart without a cluster: lint, both sets of values rendered and checked against the API of 1.37, values that cannot work
// refused, and what must hold of each pod so that machines outlive their host's.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "@cloche/base";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { parseAllDocuments, parse } from "yaml";
import { tagOfPath } from "../../packages/host/src/sys/instance.ts";
import { succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";
import { obtainTools, type Tools } from "./tools.ts";

const chart = join(repositoryRoot, "deploy/helm/cloche");
const values = { minimal: join(chart, "ci/minimal-values.yaml"), full: join(chart, "ci/full-values.yaml") };

interface Manifest {
  kind: string;
  metadata: { name: string };
  // oxlint-disable-next-line typescript/no-explicit-any -- its shape is Kubernetes' own, checked by kubernetes-validate
  spec?: any;
  automountServiceAccountToken?: boolean;
}

let tools: Tools;
let folder: string;
beforeAll(async () => {
  tools = await obtainTools();
  folder = mkdtempSync(join(tmpdir(), "cloche-chart-"));
});
afterAll(() => rmSync(folder, { recursive: true }));

const template = (...words: string[]) => runCommand(tools.helm, ["template", "demo", chart, ...words]);

const rendered = (file: string): Promise<Manifest[]> => manifests("--values", file);

async function manifests(...words: string[]): Promise<Manifest[]> {
  const text = await succeeded(tools.helm, ["template", "demo", chart, ...words]);
  return parseAllDocuments(text).map((one) => one.toJS() as Manifest);
}

describe.each(Object.entries(values))("with the %s values", (name, file) => {
  it("is lint-free", async () => {
    await succeeded(tools.helm, ["lint", "--strict", chart, "--values", file]);
  });

  it("is what Kubernetes 1.37 takes, field by field", async () => {
    const path = join(folder, `${name}.yaml`);
    writeFileSync(path, await succeeded(tools.helm, ["template", "demo", chart, "--values", file]));
    const words = ["-m", "kubernetes_validate", "--strict", "--kubernetes-version", "1.37", path];
    await succeeded(tools.python, words);
    writeFileSync(path, readFileSync(path, "utf8").replace("hostPID: true", "hostPIDs: true"));
    expect((await runCommand(tools.python, words)).code).not.toBe(0);
  });

  it("gives no pod an API token, and no variables of services", async () => {
    const pods = (await rendered(file)).filter(({ spec }) => spec?.template !== undefined);
    expect(pods.map(({ kind }) => kind).sort()).toEqual(["DaemonSet", "Deployment", "Deployment"]);
    for (const { spec } of pods) {
      expect(spec.template.spec.automountServiceAccountToken).toBe(false);
      // A service named <release>-gateway would set CLOCHE_GATEWAY_PORT to a URL.
      expect(spec.template.spec.enableServiceLinks).toBe(false);
    }
    const accounts = (await rendered(file)).filter(({ kind }) => kind === "ServiceAccount");
    expect(accounts.map((one) => one.automountServiceAccountToken)).toEqual([false, false, false]);
  });

  it("lets gateways and edges be left before they refuse", async () => {
    const deployments = (await rendered(file)).filter(({ kind }) => kind === "Deployment");
    const sleeps = deployments.map(({ spec }) => spec.template.spec.containers[0].lifecycle.preStop.sleep);
    expect(sleeps).toEqual([{ seconds: 5 }, { seconds: 5 }]);
  });

  it("gives the host's pod what its machines need to outlive it", async () => {
    const { spec } = (await rendered(file)).find(({ kind }) => kind === "DaemonSet") as Manifest;
    const home = (parse(readFileSync(file, "utf8")) as { host?: { home: string } }).host?.home;
    const path = home ?? "/var/lib/cloche";
    expect(spec.updateStrategy).toEqual({ type: "OnDelete" });
    const pod = spec.template.spec;
    expect(pod).toMatchObject({ hostPID: true, hostNetwork: true });
    const [container] = pod.containers;
    expect(container.securityContext.privileged).toBe(true);
    expect(container.env).toContainEqual({ name: "CLOCHE_HOST_IN_POD", value: "1" });
    const shared = [path, `/run/cloche-${tagOfPath(path)}`, "/run/netns"];
    for (const place of [...shared, "/sys/fs/cgroup", "/dev"]) {
      const mount = container.volumeMounts.find((one: { mountPath: string }) => one.mountPath === place);
      expect(mount?.mountPropagation, place).toBe(shared.includes(place) ? "Bidirectional" : undefined);
      const volume = pod.volumes.find((one: { name: string }) => one.name === mount?.name);
      expect(volume?.hostPath?.path).toBe(place);
    }
  });

  it("gives hosts and edges no way to the database", async () => {
    const pods = (await rendered(file)).filter(({ spec }) => spec?.template !== undefined);
    const withDatabase = pods.filter(({ spec }) => /CLOCHE_DATABASE_URL/.test(JSON.stringify(spec)));
    expect(withDatabase.map(({ metadata }) => metadata.name)).toEqual(["demo-gateway"]);
    const withSecret = pods.filter(({ spec }) => /CLOCHE_CLUSTER_SECRET_FILE/.test(JSON.stringify(spec)));
    expect(withSecret.map(({ metadata }) => metadata.name)).toEqual(["demo-gateway"]);
  });
});

describe("the endpoints for E2B and MCP", () => {
  const named = (all: Manifest[], kind: string, name: string) =>
    all.find((one) => one.kind === kind && one.metadata.name === `demo-${name}`)?.spec;
  const open = ["--namespace", "apart", "--set", "gateway.e2bPort=7082", "--set", "gateway.mcpPort=7083"];
  const settings = ["CLOCHE_E2B_PORT", "CLOCHE_MCP_PORT", "CLOCHE_MCP_HOSTS", "CLOCHE_CLUSTER_EDGE_URL"];

  async function parts(...words: string[]) {
    const all = await manifests("--values", values.minimal, ...words);
    const [container] = named(all, "Deployment", "gateway").template.spec.containers;
    const env = new Map(container.env.map((one: { name: string; value: string }) => [one.name, one.value]));
    const policy = named(all, "NetworkPolicy", "gateway");
    return {
      settings: settings.map((name) => env.get(name)),
      ports: container.ports,
      service: named(all, "Service", "gateway").ports,
      e2b: named(all, "Service", "gateway-e2b"),
      mcp: named(all, "Service", "gateway-mcp"),
      toClients: policy.ingress[0].ports,
      toEdges: policy.egress.find((rule: { to?: unknown }) => rule.to !== undefined),
    };
  }

  it("are closed unless their ports are given", async () => {
    expect(await parts()).toEqual({
      settings: ["0", "0", undefined, undefined],
      ports: [
        { name: "http", containerPort: 7080 },
        { name: "cluster", containerPort: 7090 },
      ],
      service: [{ name: "http", port: 7080, targetPort: "http" }],
      e2b: undefined,
      mcp: undefined,
      toClients: [{ port: 7080 }],
      toEdges: undefined,
    });
  });

  it("are reached by their services, and reach the edges", async () => {
    const found = await parts(...open, "--set", "gateway.mcpHosts={mcp.example.com}");
    const own = "demo-gateway-mcp";
    const names = [own, `${own}.apart`, `${own}.apart.svc`, `${own}.apart.svc.cluster.local`];
    expect(found.settings).toEqual([
      "7082",
      "7083",
      [...names, "mcp.example.com"].join(","),
      "https://demo-edge.apart.svc:443",
    ]);
    expect(found.ports).toContainEqual({ name: "e2b", containerPort: 7082 });
    expect(found.ports).toContainEqual({ name: "mcp", containerPort: 7083 });
    expect(found.service).toEqual([{ name: "http", port: 7080, targetPort: "http" }]);
    // Sessions, and watchers that are polled, live in one gateway.
    const ofClients = {
      type: "ClusterIP",
      sessionAffinity: "ClientIP",
      selector: { "app.kubernetes.io/component": "gateway" },
    };
    expect(found.e2b).toMatchObject({
      ...ofClients,
      ports: [{ name: "e2b", port: 7082, targetPort: "e2b" }],
    });
    expect(found.mcp).toMatchObject({
      ...ofClients,
      ports: [{ name: "mcp", port: 7083, targetPort: "mcp" }],
    });
    expect(found.toClients).toEqual([{ port: 7080 }, { port: 7082 }, { port: 7083 }]);
    expect(found.toEdges).toMatchObject({
      ports: [{ port: 7443 }],
      to: [{ podSelector: { matchLabels: { "app.kubernetes.io/component": "edge" } } }],
    });
  });

  it("are as the gateway reads its settings", async () => {
    const [e2bPort, mcpPort, mcpHosts, edgeUrl] = (await parts(...open)).settings as string[];
    const config = loadConfig({
      CLOCHE_HOME: folder,
      CLOCHE_E2B_PORT: e2bPort,
      CLOCHE_MCP_PORT: mcpPort,
      CLOCHE_MCP_HOSTS: mcpHosts,
      CLOCHE_CLUSTER_EDGE_URL: edgeUrl,
    });
    expect(config).toMatchObject({ e2bPort: 7082, mcpPort: 7083, clusterEdgeUrl: edgeUrl });
    expect(config.mcpHosts).toHaveLength(4);
  });
});

describe("the network policies", () => {
  const component = (name: string) => ({
    podSelector: { matchLabels: { "app.kubernetes.io/component": name } },
  });

  /** Of each rule: its ports, and whom it admits; undefined: everybody. */
  async function admitted(...words: string[]): Promise<Record<string, [number[], unknown][]>> {
    const policies = (await manifests("--values", values.minimal, ...words)).filter(
      ({ kind }) => kind === "NetworkPolicy",
    );
    return Object.fromEntries(
      policies.map(({ metadata, spec }) => [
        metadata.name,
        spec.ingress.map(({ ports, from }: { ports: { port: number }[]; from: unknown }) => [
          ports.map(({ port }) => port),
          from,
        ]),
      ]),
    );
  }

  it("admit to the API pods of the same namespace, and everybody only to ports that check certificates or tokens", async () => {
    expect(await admitted("--set", "gateway.e2bPort=7082", "--set", "gateway.mcpPort=7083")).toEqual({
      "demo-gateway": [
        [[7080, 7082, 7083], [{ podSelector: {} }]],
        [[7090], undefined],
      ],
      "demo-edge": [[[7443], undefined]],
    });
  });

  it("admit whom the operator names", async () => {
    const clients = [{ namespaceSelector: { matchLabels: { team: "a" } } }];
    const nodes = [{ ipBlock: { cidr: "10.0.0.0/24" } }];
    const policy = JSON.stringify({ clients, nodes });
    expect((await admitted("--set-json", `networkPolicy=${policy}`))["demo-gateway"]).toMatchObject([
      [[7080], clients],
      [[7090], [component("gateway"), component("edge"), ...nodes]],
    ]);
    const [api] = (await admitted("--set-json", "networkPolicy.clients=[]"))["demo-gateway"] ?? [];
    expect(api).toEqual([[7080], undefined]);
  });
});

describe("values", () => {
  it.each([
    ["a port for E2B that is none", ["--set", "gateway.e2bPort=70000"], /e2bPort/],
    ["a host of MCP with its port", ["--set", "gateway.mcpHosts={mcp.example.com:443}"], /mcpHosts/],
    ["a client of the API that is anybody", ["--set-json", "networkPolicy.clients=[{}]"], /clients/],
    ["clients of the API taken out", ["--set", "networkPolicy.clients=null"], /clients/],
    ["no base domain", ["--set", "baseDomain="], /baseDomain/],
    ["a base domain in capitals", ["--set", "baseDomain=Example.com"], /baseDomain/],
    ["a storage that is not shared", ["--set", "storage.url=/var/blobs"], /storage/],
    ["a name that is unknown", ["--set", "gatway.replicas=3"], /gatway/],
    ["no gateways", ["--set", "gateway.replicas=0"], /replicas/],
    ["hosts on every node", ["--set-json", 'host.nodeSelector={"cloche-host":null}'], /nodeSelector/],
    ["a home with a slash at its end", ["--set", "host.home=/data/"], /home/],
    ["a strategy of placement that is none", ["--set", "gateway.placement=random"], /placement/],
  ])("with %s are refused by name", async (_, words, named) => {
    const { code, stderr } = await template("--values", values.minimal, ...words);
    expect(code).not.toBe(0);
    expect(stderr).toMatch(named);
  });

  it("are each described, and each in the chart's README", () => {
    const schema = JSON.parse(readFileSync(join(chart, "values.schema.json"), "utf8")) as object;
    const readme = readFileSync(join(chart, "README.md"), "utf8");
    const leaves = leavesOf(parse(readFileSync(join(chart, "values.yaml"), "utf8")) as object);
    for (const path of leaves) {
      expect(descriptionOf(schema, path), path.join(".")).toMatch(/\w/);
      expect(readme).toContain(`\`${path.join(".")}\``);
    }
  });
});

interface Schema {
  description?: string;
  properties?: Record<string, Schema>;
}

/** Undefined where the schema does not know the value, or says nothing of it. */
function descriptionOf(schema: Schema, path: readonly string[]): string | undefined {
  const [first, ...rest] = path;
  if (first === undefined) return schema.description;
  const below = schema.properties?.[first];
  return below && descriptionOf(below, rest);
}

/** Paths of the values that are no groups. What an operator fills with names of his own is one value. */
function leavesOf(value: object, path: readonly string[] = []): string[][] {
  const whole = ["resources", "nodeSelector", "annotations", "labels"];
  return Object.entries(value).flatMap(([name, one]) => {
    const isGroup = one !== null && typeof one === "object" && !Array.isArray(one) && !whole.includes(name);
    return isGroup ? leavesOf(one as object, [...path, name]) : [[...path, name]];
  });
}
