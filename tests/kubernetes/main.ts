// `npm run test:kubernetes`: the chart on real Kubernetes nodes of 1.37. A sandbox is created through it; then the host's pod ends in
// each way that pods end, the release is upgraded, and a second node joins, so that the first can be drained. The sandbox must go
// on each time (ways.ts). Prints a table; exit code 1 when a row is wrong. Needs root and Debian 12. Settings:
//
//   CLOCHE_CACHE                what is built once (/var/tmp/cloche-cache)
//   CLOCHE_KUBERNETES_PROGRAMS  folder with the nodes' programs (built into CLOCHE_CACHE the first time)
//   CLOCHE_KUBERNETES_KEEP      1: the nodes stay when the test ends, to look at (no)
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { obtainTools } from "../deploy/tools.ts";
import { cacheFolder, repositoryRoot } from "../fixtures/service.ts";
import { LabCluster, type Part, selectorOf } from "./cluster.ts";
import { LabNode } from "./node.ts";
import { obtainNodePrograms } from "./programs.ts";
import { nextCheckout, type Release, releaseOf } from "./release.ts";
import { Ways } from "./ways.ts";

const say = (step: string, detail?: string): void => console.error(detail ? `${step}: ${detail}` : step);

/** Edges hold a request for so long while a host is away that said so; one that ends without a word cuts them short. */
const HELD_MS = 20_000;
const CUT_SHORT = 0;
/** And for so long while a sandbox moves. */
const MOVE_HELD_MS = 30_000;

const folder = mkdtempSync("/var/tmp/cloche-kubernetes-");
const programs = await obtainNodePrograms(cacheFolder, say);
const clients = join((await obtainTools()).kubectl, "..");
const first = new LabNode(join(folder, "n1"), programs, clients);
const second = new LabNode(join(folder, "n2"), programs, clients, first);
const cluster = new LabCluster(first);
let ways: Ways | undefined;
let failure: unknown;
try {
  const [release, next] = releases();
  say("starting the node", folder);
  await first.start();
  say("importing the images of both releases");
  for (const { images } of [release, next]) await first.importImages(images);
  say("installing the chart", release.version);
  await cluster.install(release);
  const sandbox = await cluster.create();
  say("created", sandbox);
  ways = new Ways(cluster, first, sandbox);
  await endPods(ways);
  await cordon();
  await joinSecond(release, next);
  await upgrade(ways, release, next);
  await drain(ways);
  await cluster.delete(sandbox);
} catch (error) {
  failure = error;
} finally {
  if (process.env["CLOCHE_KUBERNETES_KEEP"] !== "1") {
    await cluster.close();
    for (const node of [second, first]) await node.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}
report();

/** This checkout's, and one after it. */
function releases(): [Release, Release] {
  const [checkout, out] = [join(folder, "next"), join(folder, "images")];
  mkdirSync(checkout);
  nextCheckout(checkout);
  return [
    releaseOf(repositoryRoot, join(out, "first"), cacheFolder),
    releaseOf(checkout, join(out, "next"), cacheFolder),
  ];
}

async function endPods(all: Ways): Promise<void> {
  const killHost = "kill -9 $(pgrep -f '^/usr/local/bin/node .*main.ts host')";
  const inNode = (script: string) => () => first.in(["sh", "-c", script]);
  await replaced(all, "kubectl delete pod", deleteHost);
  await replaced(
    all,
    "kubectl delete --force --grace-period=0",
    () => deleteHost("--force", "--grace-period=0"),
    CUT_SHORT,
  );
  await replaced(all, "kill -9 of the container's program", inNode(killHost), CUT_SHORT);
  const abort = killHost.replace("-9", "-ABRT");
  await replaced(all, "crash of the program (SIGABRT)", inNode(abort), CUT_SHORT);
  await stays(all, "kubelet restarted", () => first.restart("kubelet"));
  await stays(all, "kubelet killed", () => first.restart("kubelet", "-9"));
  await stays(all, "containerd killed", () => first.restart("containerd"));
}

/** A second host of the first release, which has what memory of that release needs. */
async function joinSecond(release: Release, next: Release): Promise<void> {
  say("a second node joins");
  await second.start();
  for (const { images } of [release, next]) await second.importImages(images);
  await cluster.runHostsOn(second);
}

/** Gateways and edges first, then the hosts one by one, as docs/kubernetes.md says. */
async function upgrade(all: Ways, release: Release, next: Release): Promise<void> {
  const replaceBoth = () => cluster.upgrade(next);
  await stays(all, `gateways and edges upgraded to ${next.version}`, replaceBoth, async () => [
    ...(await notOf("gateway", 2, next)),
    ...(await notOf("edge", 2, next)),
    ...(await notOf("host", 2, release)),
  ]);
  await replaced(all, `host upgraded to ${next.version}`, deleteHost);
  const pod = await cluster.hostPod(second);
  await deletePodOf(second);
  const isNew = async (): Promise<boolean> => !["", pod].includes(await cluster.hostPod(second));
  await first.until("the second host is upgraded", isNew);
  const problems = await notOf("host", 2, next);
  if (problems.length > 0) throw new Error(problems.join("; "));
}

/** The first node: of its pods by Kubernetes, then of its sandbox by Cloche, which moves to the host of the second one. */
async function drain(all: Ways): Promise<void> {
  await cluster.restartOn(first, second);
  const misplaced = await notOn(first);
  if (misplaced.length > 0) throw new Error(misplaced.join("; "));
  const words = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s"];
  const evict = () => first.kubectl("drain", first.name, ...words).then(() => cluster.rolledOut());
  await stays(all, "kubectl drain of the node", evict, () => notOn(second));
  await first.kubectl("uncordon", first.name);
  await all.try({
    what: "cloche drain of the host",
    act: () => cluster.cloche("drain", first.name),
    isOver: async () => {
      const hosts = await cluster.hosts();
      const reserved = (id: string) => hosts.find((host) => host.id === id)?.reserved_memory_mb;
      return reserved(first.name) === 0 && (reserved(second.name) ?? 0) > 0;
    },
    heldMs: MOVE_HELD_MS,
  });
}

function deleteHost(...words: string[]): Promise<string> {
  return deletePodOf(first, ...words);
}

function deletePodOf(node: LabNode, ...words: string[]): Promise<string> {
  const ofNode = ["-l", selectorOf("host"), "--field-selector", `spec.nodeName=${node.name}`];
  return cluster.kubectl("delete", "pod", ...ofNode, ...words);
}

/** The host's pod ends, and another one or another container takes over. */
async function replaced(
  all: Ways,
  what: string,
  act: () => Promise<unknown>,
  heldMs = HELD_MS,
  problems?: () => Promise<string[]>,
): Promise<void> {
  const pod = await cluster.hostPod();
  const isOver = async (): Promise<boolean> => {
    const now = await cluster.hostPod();
    return now !== "" && now !== pod;
  };
  await all.try({ what, act: () => act(), isOver, heldMs, ...(problems && { problems }) });
}

/** Nothing may happen to the host's pod. */
async function stays(
  all: Ways,
  what: string,
  act: () => Promise<unknown>,
  problems?: () => Promise<string[]>,
): Promise<void> {
  const pod = await cluster.hostPod();
  const isOver = async (): Promise<boolean> => (await cluster.hostPod()) === pod;
  await all.try({ what, act, isOver, ...(problems && { problems }) });
}

/** All gateways and edges must be on this node. */
async function notOn({ name }: LabNode): Promise<string[]> {
  const nodes = [...(await cluster.nodesOf("gateway")), ...(await cluster.nodesOf("edge"))];
  const isRight = nodes.length === 4 && nodes.every((one) => one === name);
  return isRight ? [] : [`gateways and edges are on ${nodes.join(", ")}, not on ${name}`];
}

async function notOf(part: Part, count: number, { version }: Release): Promise<string[]> {
  const seen = await cluster.versions(part);
  const isRight = seen.length === count && seen.every((one) => one === version);
  return isRight ? [] : [`of ${part} run ${seen.join(", ")}, not ${count} times ${version}`];
}

/** The only host takes no new sandbox, then takes one again. */
async function cordon(): Promise<void> {
  await cluster.cloche("cordon", first.name);
  const refused = await cluster.create().then(
    () => "created",
    () => "refused",
  );
  await cluster.cloche("uncordon", first.name);
  // Each gateway looks at the hosts by itself.
  let sandbox = "";
  const isTaken = async (): Promise<boolean> => (sandbox = await cluster.create()) !== "";
  await first.until("an open host takes a sandbox", isTaken, 30_000);
  await cluster.delete(sandbox);
  say(`cordoned: ${refused}, uncordoned: created`);
  if (refused !== "refused") throw new Error("a cordoned host took a sandbox");
}

function report(): void {
  ways?.print();
  if (failure !== undefined) console.error(failure);
  const wrong = (ways?.wrong ?? 0) + (failure === undefined ? 0 : 1);
  console.log(`${ways?.rows.length ?? 0} ways, ${wrong} wrong`);
  process.exit(wrong === 0 ? 0 : 1);
}
