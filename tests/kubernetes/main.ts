// `npm run test:kubernetes`: the chart on a real Kubernetes 1.37 node. A sandbox is created through it; then the host's pod ends in
// each way that pods end, and each time the sandbox must go on, the next pod must adopt it, and no request may fail once that pod
// is ready. Prints a table; exit code 1 when a row is wrong. Needs root and Debian 12. Settings, each with its default:
//
//   CLOCHE_KUBERNETES_PROGRAMS  folder with the node's programs (built into CLOCHE_CACHE the first time)
//   CLOCHE_KUBERNETES_IMAGES    images.tar of deploy/images/build.ts (built)
//   CLOCHE_KUBERNETES_KEEP      1: the node stays when the test ends, to look at (no)
import { execFileSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { obtainTools } from "../deploy/tools.ts";
import { cacheFolder, repositoryRoot } from "../fixtures/service.ts";
import { type Counted, LabCluster } from "./cluster.ts";
import { LabNode } from "./node.ts";
import { obtainNodePrograms } from "./programs.ts";

const REQUESTS = 50;
const TAGS = { first: "first", second: "second" };
const REPOSITORIES = ["docker.io/cloche/cloche", "docker.io/cloche/cloche-host"];
const say = (step: string, detail?: string): void => console.error(detail ? `${step}: ${detail}` : step);

interface Row {
  what: string;
  isRight: boolean;
  readyMs: number;
  before: Counted;
  after: Counted;
}

function images(): string {
  const given = process.env["CLOCHE_KUBERNETES_IMAGES"];
  if (given) return given;
  const out = join(cacheFolder, "kubernetes-images");
  const words = ["deploy/images/build.ts", "--out", out, "--tag", TAGS.first, "--cache", cacheFolder];
  execFileSync(process.execPath, words, { cwd: repositoryRoot, stdio: "inherit" });
  return join(out, "images.tar");
}

const folder = mkdtempSync("/var/tmp/cloche-kubernetes-");
const tools = await obtainTools();
const node = new LabNode(folder, await obtainNodePrograms(cacheFolder, say), join(tools.kubectl, ".."));
const cluster = new LabCluster(node);
const rows: Row[] = [];
let failure: unknown;
try {
  const archive = images();
  say("starting the node", folder);
  await node.start();
  say("importing the images");
  await node.importImages(archive);
  for (const name of REPOSITORIES)
    await node.in([
      "ctr",
      "-n",
      "k8s.io",
      "images",
      "tag",
      `${name}:${TAGS.first}`,
      `${name}:${TAGS.second}`,
    ]);
  say("installing the chart");
  await cluster.install(TAGS.first);
  await run();
} catch (error) {
  failure = error;
} finally {
  if (process.env["CLOCHE_KUBERNETES_KEEP"] !== "1") {
    await cluster.close();
    await node.stop();
  }
}
report();

async function run(): Promise<void> {
  const id = await cluster.create();
  say("created", id);
  const hostPods = ["pod", "-l", "app.kubernetes.io/component=host"];
  const killHost = "kill -9 $(pgrep -f '^/usr/local/bin/node .*main.ts host')";
  await end(id, "kubectl delete pod", () => cluster.kubectl("delete", ...hostPods));
  const force = ["--force", "--grace-period=0"];
  await end(id, "kubectl delete --force --grace-period=0", () =>
    cluster.kubectl("delete", ...hostPods, ...force),
  );
  await end(id, "kill -9 of the container's program", () => node.in(["sh", "-c", killHost]));
  const abort = killHost.replace("-9", "-ABRT");
  await end(id, "crash of the program (SIGABRT)", () => node.in(["sh", "-c", abort]));
  await stays(id, "kubelet restarted", () => node.restart("kubelet"));
  await stays(id, "kubelet killed", () => node.restart("kubelet", "-9"));
  await stays(id, "containerd killed", () => node.restart("containerd"));
  await stays(id, "chart upgraded: OnDelete leaves the host", () => upgrade(id));
  await end(id, "the upgraded host's pod deleted", () => cluster.kubectl("delete", ...hostPods));
  await cordon();
  await cluster.delete(id);
}

/** The pod ends, and another one or another container takes over. */
async function end(id: string, what: string, act: () => Promise<unknown>): Promise<void> {
  const [pod, before] = [await cluster.hostPod(), await cluster.count(id, 1)];
  await act();
  const readyMs = await node.until(`the next pod after: ${what}`, async () => {
    const now = await cluster.hostPod();
    return now !== "" && now !== pod;
  });
  note(what, readyMs, before, await cluster.count(id, REQUESTS));
}

/** Gateways and edges are replaced one by one; answers when they are. What fails meanwhile is told, and judged by other tests. */
async function upgrade(id: string): Promise<void> {
  await cluster.upgrade(TAGS.second);
  const { failed, errors } = await cluster.count(id, REQUESTS);
  say(
    `while edges and gateways were replaced: ${failed} of ${REQUESTS} failed`,
    [...new Set(errors)].join("; "),
  );
  for (const part of ["gateway", "edge"])
    await cluster.kubectl("rollout", "status", `deploy/demo-${part}`, "--timeout=120s");
}

/** Nothing may happen to the host's pod. */
async function stays(id: string, what: string, act: () => Promise<unknown>): Promise<void> {
  const [pod, before] = [await cluster.hostPod(), await cluster.count(id, 1)];
  await act();
  const readyMs = await node.until(
    `the same pod after: ${what}`,
    async () => (await cluster.hostPod()) === pod,
  );
  note(what, readyMs, before, await cluster.count(id, REQUESTS));
}

function note(what: string, readyMs: number, before: Counted, after: Counted): void {
  const isSame = after.pid === before.pid && after.start === before.start && after.count > before.count;
  const row = { what, readyMs, before, after, isRight: isSame && after.failed === 0 };
  rows.push(row);
  say(lineOf(row));
  for (const error of new Set(after.errors)) say(`  ${error}`);
}

/** The only host takes no new sandbox, then takes one again. */
async function cordon(): Promise<void> {
  const { hosts } = JSON.parse(await cluster.cloche("hosts", "--json")) as { hosts: { id: string }[] };
  const id = hosts[0]?.id ?? "";
  await cluster.cloche("cordon", id);
  const refused = await cluster.create().then(
    () => "created",
    () => "refused",
  );
  await cluster.cloche("uncordon", id);
  // Each gateway looks at the hosts by itself.
  let sandbox = "";
  await node.until(
    "an open host takes a sandbox",
    async () => (sandbox = await cluster.create()) !== "",
    30_000,
  );
  await cluster.delete(sandbox);
  say(`cordoned: ${refused}, uncordoned: created`);
  if (refused !== "refused") throw new Error("a cordoned host took a sandbox");
}

function lineOf({ what, isRight, readyMs, before, after }: Row): string {
  const cells = [
    what.padEnd(44),
    isRight ? "right" : "WRONG",
    `${(readyMs / 1_000).toFixed(1)} s`.padStart(8),
    `${before.pid}`.padStart(6),
    `${after.pid}`.padStart(6),
    `${before.count} → ${after.count}`.padStart(14),
    `${after.failed} of ${REQUESTS}`.padStart(9),
  ];
  return cells.join("  ");
}

function report(): void {
  console.log(`\n${"the host's pod".padEnd(44)}         ready in  pid    pid   counter         failed`);
  for (const row of rows) console.log(lineOf(row));
  if (failure !== undefined) console.error(failure);
  const wrong = rows.filter(({ isRight }) => !isRight).length + (failure === undefined ? 0 : 1);
  console.log(`${rows.length} ways, ${wrong} wrong`);
  process.exit(wrong === 0 ? 0 : 1);
}
