// A cluster on one computer: hosts, gateways and edges as nodes of a network of their own, with a PostgreSQL and an S3 server. Owns the
// folder `base` and, beside it, one home a node (`<base>-h1`, …): by a home's name everything of a host is found.
//
//   (none) ──up──▶ running ──stop, kill, lose, cut──▶ damaged ──mend──▶ running ──down──▶ (none)
//
// `npm run lab` and the part `cluster` of the tests use it. What survives the script: all of it; `Lab.found` reads `<base>/lab.json`.
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { readJsonFile } from "@cloche/base";
import type { Progress } from "../../packages/base/src/setup-step.ts";
import type { Target } from "../conformance/wire.ts";
import { sweep, tagOf } from "../fixtures/inventory.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";
import {
  askDatabase,
  type LabDatabase,
  makeDatabase,
  removeDatabase,
  startDatabase,
  stopDatabase,
} from "./database.ts";
import { listens, statusOf } from "./listens.ts";
import { endProgram, isAlive, type NodeProcess, startProgram } from "./node-process.ts";
import {
  CLUSTER_PORT,
  EDGE_PORT,
  GATEWAY_PORT,
  type LabPlaces,
  roleOf,
  roleSettings,
  S3_KEYS,
} from "./roles.ts";
import { Switch } from "./switch.ts";
import { obtainVersitygw } from "./versitygw.ts";

export const GATEWAYS = ["g1", "g2"] as const;
export const HOSTS = ["h1", "h2", "h3"] as const;
export const EDGES = ["e1", "e2"] as const;
const ROLES: readonly string[] = [...GATEWAYS, ...HOSTS, ...EDGES];
const NODES: readonly string[] = ["pg", "s3", ...ROLES];

/** Of a host that renews. */
const LEASE_MS = 15_500;
const S3_PORT = 7070;
const BUCKET = "cloche";
/** The first host of a computer builds the images; later ones take seconds. */
const READY_DEADLINE_MS = 20 * 60_000;

interface LabState {
  prefix: string;
  database: LabDatabase;
  places: LabPlaces;
  /** By node; of one that was stopped, the last. */
  processes: Record<string, NodeProcess>;
}

export interface LabOptions {
  /** Absent: a folder that `up` makes. */
  readonly base: string;
  readonly cache: string;
  readonly progress: Progress;
}

export class Lab {
  readonly base: string;
  readonly #network: Switch;
  readonly #state: LabState;

  private constructor(base: string, network: Switch, state: LabState) {
    this.base = base;
    this.#network = network;
    this.#state = state;
  }

  /** Makes and starts everything; answers when every role serves. What fails leaves nothing. */
  static async up({ base, cache, progress }: LabOptions): Promise<Lab> {
    if (existsSync(base)) throw new Error(`${base} is there already: end that lab first`);
    const versitygw = await obtainVersitygw(cache, progress);
    mkdirSync(base, { recursive: true, mode: 0o700 });
    try {
      progress("network");
      const network = await Switch.open(tagOf(base), NODES);
      progress("PostgreSQL");
      const database = await makeDatabase(databasePlace(base, network));
      const lab = new Lab(base, network, newState({ base, cache, network, database }));
      progress("S3 server");
      await lab.#startS3(versitygw);
      await lab.#startRoles(progress);
      return lab;
    } catch (error) {
      const logs = logTails(base);
      await Lab.remove(base);
      throw new Error(`${(error as Error).message}\n${logs}`, { cause: error });
    }
  }

  /** One that another process has brought up. */
  static found(base: string): Lab {
    const state = JSON.parse(readFileSync(join(base, "lab.json"), "utf8")) as LabState;
    return new Lab(base, Switch.found(tagOf(base), state.prefix, NODES), state);
  }

  /** Ends and removes all of a lab, whatever state it is in. */
  static async remove(base: string): Promise<void> {
    const file = join(base, "lab.json");
    const state = existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as LabState) : undefined;
    const homes = ROLES.map((node) => homeOf(base, node));
    for (const home of homes) sweep(home);
    // Before the rest: it knows what else was noted of its namespaces.
    await Switch.found(tagOf(base), "", NODES).close();
    sweep(base);
    for (const folder of [...homes, base, ...(state ? [state.database.folder] : [])])
      rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }

  get places(): LabPlaces {
    return this.#state.places;
  }

  address(node: string): string {
    return this.#network.address(node);
  }

  home(node: string): string {
    return homeOf(this.base, node);
  }

  /** Starts a role and waits until it serves. */
  async start(node: string): Promise<void> {
    await this.#launch(node);
    await this.ready(node);
  }

  /** SIGTERM, as an operator or systemd ends it; a host's machines live on. */
  stop(node: string): Promise<void> {
    return this.#end(node, "SIGTERM");
  }

  /** SIGKILL; a host's machines live on. */
  kill(node: string): Promise<void> {
    return this.#end(node, "SIGKILL");
  }

  /** The computer of a host burns down: its plug is pulled, all that ran there ends, its disk is gone. */
  async lose(host: string): Promise<void> {
    await this.#network.plug(host, false);
    sweep(this.home(host));
    rmSync(this.home(host), { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
    await this.#network.plug(host, true);
  }

  /** Whether packets pass between two nodes; without, they are dropped in silence. */
  async connect(one: string, others: readonly string[], passes: boolean): Promise<void> {
    for (const other of others) await this.#network.connect(one, other, passes);
  }

  /** All connections pass, the database runs, every role serves, every host is open: for the next test. */
  async mend(): Promise<void> {
    await this.#network.mend();
    const isUp = await listens(this.address("pg"), 5432);
    if (!isUp) await this.startDatabase();
    for (const node of ROLES) if (!this.runs(node)) await this.#launch(node);
    for (const node of ROLES) await this.ready(node);
    for (const host of await this.sql("select id from hosts where state <> 'open'"))
      await this.command(["uncordon", host]);
  }

  runs(node: string): boolean {
    const process = this.#state.processes[node];
    return process !== undefined && isAlive(process);
  }

  stopDatabase(): Promise<void> {
    return stopDatabase(this.#state.database, databasePlace(this.base, this.#network));
  }

  startDatabase(): Promise<void> {
    return startDatabase(this.#state.database, databasePlace(this.base, this.#network));
  }

  /** How tests and the conformance cases reach it through one gateway and one edge. */
  target(gateway: string, edge: string): Target {
    return {
      gatewayUrl: `http://${this.address(gateway)}:${GATEWAY_PORT}`,
      apiKey: this.#apiKey,
      edgeHost: this.address(edge),
      edgePort: EDGE_PORT,
      ca: readFileSync(this.#caFile, "utf8"),
    };
  }

  /** The same as the environment of the SDK and of the command line, through the first of each. */
  clientSettings(): Record<string, string> {
    return {
      CLOCHE_URL: `http://${this.address("g1")}:${GATEWAY_PORT}`,
      CLOCHE_API_KEY: this.#apiKey,
      CLOCHE_EDGE_URL: `https://${this.address("e1")}:${EDGE_PORT}`,
      CLOCHE_CA_CERT: this.#caFile,
    };
  }

  /** A line a node: its name, address, role, and whether its program runs. */
  status(): string[] {
    return NODES.map((node) => {
      const what = { pg: "PostgreSQL", s3: "S3 server" }[node] ?? roleOf(node);
      const state = node === "pg" || this.runs(node) ? "runs" : "does not run";
      return `${node}  ${this.address(node).padEnd(15)}  ${what.padEnd(10)}  ${state}`;
    });
  }

  /** One statement on the cluster's database; a line a row, columns apart by `|`. */
  async sql(statement: string): Promise<string[]> {
    const place = databasePlace(this.base, this.#network);
    const text = await askDatabase(this.#state.database, place, statement);
    return text.split("\n").filter(Boolean);
  }

  /** `cloche <words>` with a node's settings and `more`, as an operator runs it there. Throws when it fails; answers its output. */
  async command(words: string[], node = "g1", more: Record<string, string> = {}): Promise<string> {
    const settings = { ...roleSettings(this.#state.places, this.#placeOf(node)), ...more };
    const [program = "", ...rest] = [...this.#network.on(node), "sh", "scripts/run.sh", ...words];
    const { code, stdout, stderr } = await runCommand(program, rest, {
      cwd: repositoryRoot,
      env: environment(settings),
    });
    if (code !== 0) throw new Error(`cloche ${words.join(" ")} ended with ${code}:\n${stdout}${stderr}`);
    return stdout;
  }

  /** Waits until a role serves. */
  async ready(node: string): Promise<void> {
    for (const until = Date.now() + READY_DEADLINE_MS; !(await this.#serves(node)); await sleep(200)) {
      if (!this.runs(node)) throw new Error(`${node} ended while it started`);
      if (Date.now() > until) throw new Error(`${node} does not serve`);
    }
  }

  /** Ends of the logs of all nodes. */
  logTails(lines?: number): string {
    return logTails(this.base, lines);
  }

  async down(): Promise<void> {
    for (const node of [...EDGES, ...GATEWAYS, ...HOSTS]) await this.stop(node);
    await endProgram(this.#processOf("s3"), "SIGTERM");
    await removeDatabase(this.#state.database, databasePlace(this.base, this.#network));
    await Lab.remove(this.base);
  }

  async #startS3(versitygw: string): Promise<void> {
    const [data, meta] = [join(this.base, "s3"), join(this.base, "metadata")];
    mkdirSync(join(data, BUCKET), { recursive: true });
    mkdirSync(meta);
    const serves = `${this.address("s3")}:${S3_PORT}`;
    const argv = [...this.#network.on("s3"), versitygw, "--port", serves, "posix", "--sidecar", meta, data];
    const keys = { ROOT_ACCESS_KEY: S3_KEYS.access, ROOT_SECRET_KEY: S3_KEYS.secret };
    await this.#run("s3", argv, { ...mark(this.base), ...keys });
    await until(() => listens(this.address("s3"), S3_PORT), "the S3 server does not listen");
  }

  async #startRoles(progress: Progress): Promise<void> {
    progress("gateways");
    for (const node of GATEWAYS) await this.start(node);
    for (const role of ["host", "edge"] as const) {
      const token = (await this.command(["join-token", role, "--reusable"])).trim();
      const { places } = this.#state;
      this.#state.places = { ...places, joinTokens: { ...places.joinTokens, [role]: token } };
    }
    progress("hosts and edges");
    // The first alone: what it builds is there for the others.
    await this.start(HOSTS[0]);
    const others = [...HOSTS.slice(1), ...EDGES];
    for (const node of others) await this.#launch(node);
    for (const node of others) await this.ready(node);
  }

  async #launch(node: string): Promise<void> {
    const place = this.#placeOf(node);
    const isAnother = this.#state.processes[node] !== undefined && !existsSync(place.home);
    // A new computer by the name of one that burnt down, as an operator brings it in.
    if (isAnother && roleOf(node) !== "gateway") await this.command(["forget", `${roleOf(node)}/${node}`]);
    mkdirSync(place.home, { recursive: true, mode: 0o700 });
    const settings = roleSettings(this.#state.places, place);
    const argv = [...this.#network.on(node), "sh", "scripts/run.sh", roleOf(node)];
    await this.#run(node, argv, settings);
  }

  async #run(node: string, argv: readonly string[], settings: Record<string, string>): Promise<void> {
    const logFile = join(this.base, "log", `${node}.log`);
    this.#state.processes[node] = await startProgram(argv, {
      env: environment(settings),
      logFile,
      cwd: repositoryRoot,
    });
    this.#save();
  }

  async #end(node: string, signal: NodeJS.Signals): Promise<void> {
    await endProgram(this.#processOf(node), signal);
  }

  async #serves(node: string): Promise<boolean> {
    const status = (await readJsonFile(join(this.home(node), "run", "status.json"))) as
      | { pid: number; ready: boolean }
      | undefined;
    if (status?.ready !== true || status.pid !== this.#processOf(node).pid) return false;
    if (roleOf(node) === "edge")
      return (await statusOf(`https://${this.address(node)}:${EDGE_PORT}/readyz`)) === 200;
    return roleOf(node) === "gateway" || this.#isLeased(node);
  }

  /** By a lease that is renewed: the one of a host that was stopped is longer. */
  async #isLeased(host: string): Promise<boolean> {
    const left = "lease_until - extract(epoch from now()) * 1000";
    const held = `lost_at is null and awaits_admission = 0 and ${left} between 0 and ${LEASE_MS}`;
    return (await this.sql(`select id from hosts where id = '${host}' and ${held}`)).length === 1;
  }

  get #apiKey(): string {
    return readFileSync(join(this.home("g1"), "keys", "api_key"), "utf8").trim();
  }

  get #caFile(): string {
    return join(this.home("g1"), "tls", "ca.pem");
  }

  #processOf(node: string): NodeProcess {
    const found = this.#state.processes[node];
    if (found === undefined) throw new Error(`${node} was never started`);
    return found;
  }

  #placeOf(node: string) {
    return { node, home: this.home(node), address: this.address(node) };
  }

  #save(): void {
    const file = join(this.base, "lab.json");
    writeFileSync(`${file}.new`, JSON.stringify(this.#state, null, 2), { mode: 0o600 });
    renameSync(`${file}.new`, file);
  }
}

const homeOf = (base: string, node: string): string => `${base}-${node}`;

/** By which a sweep of the lab's folder finds what is no role's. */
const mark = (base: string) => ({ CLOCHE_HOME: base });

const databasePlace = (base: string, network: Switch) => ({
  on: network.on("pg"),
  address: network.address("pg"),
  mark: mark(base),
});

function newState({
  base,
  cache,
  network,
  database,
}: {
  base: string;
  cache: string;
  network: Switch;
  database: LabDatabase;
}): LabState {
  const secretFile = join(base, "cluster-secret");
  writeFileSync(secretFile, randomBytes(32).toString("base64url"), { mode: 0o600 });
  mkdirSync(join(base, "log"));
  const places = {
    cache,
    databaseUrl: database.url,
    blobUrl: `s3://${BUCKET}/lab?endpoint=http://${network.address("s3")}:${S3_PORT}`,
    secretFile,
    edgeUrl: `https://${network.address(EDGES[0])}:${EDGE_PORT}`,
    clusterGateways: GATEWAYS.map((node) => `${network.address(node)}:${CLUSTER_PORT}`),
    joinTokens: { host: "", edge: "" },
  };
  return { prefix: network.prefix, database, places, processes: {} };
}

/** This machine's own, without what is of a service or of a test runner. */
function environment(settings: Record<string, string>): NodeJS.ProcessEnv {
  const foreign = /^(CLOCHE_|AWS_|VITEST|NODE_OPTIONS$|NODE_ENV$|TEST$)/;
  const own = Object.entries(process.env).filter(([name]) => !foreign.test(name));
  return { ...Object.fromEntries(own), ...settings };
}

async function until(isSo: () => Promise<boolean>, why: string): Promise<void> {
  for (let tries = 0; !(await isSo()); tries += 1, await sleep(100)) if (tries === 100) throw new Error(why);
}

function logTails(base: string, lines = 40): string {
  return NODES.flatMap((node) => [
    join(base, "log", `${node}.log`),
    join(homeOf(base, node), "log", "service.log"),
  ])
    .filter((file) => existsSync(file))
    .map(
      (file) => `--- ${file}\n${readFileSync(file, "utf8").trimEnd().split("\n").slice(-lines).join("\n")}`,
    )
    .join("\n");
}
