/**
 * What a start needs, checked in a second and before any work: root, Debian, free ports, room on the disk. `up` stops at the first
 * failure; `doctor` prints every check with its remedy.
 */
import { lstat, readdir, readFile, stat, statfs } from "node:fs/promises";
import { createServer } from "node:net";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { type Config, ConfigError } from "@cloche/base";

export interface Check {
  name: string;
  state: "ok" | "warning" | "failed";
  /** What was found. */
  found: string;
  /** What to do; empty: nothing. */
  remedy: string;
}

const gib = 1024 ** 3;
/** Artifacts with what their builds need; the smallest pool, which takes four fifths of the space; the reserve of a later start. */
const artifactBytes = 2 * gib;
const poolBytes = 2.5 * gib;
const laterBytes = 0.25 * gib;

/** `isRunning`: a service of this home holds its ports. */
export async function preflight(config: Config, isRunning: boolean): Promise<Check[]> {
  return [
    checkRoot(),
    await checkSystem(),
    ...(await checkPorts(config, isRunning)),
    await checkSpace(config),
    await checkOwners([config.home, config.cache]),
  ];
}

/** Throws ConfigError with every check that failed. */
export async function requirePreflight(config: Config): Promise<void> {
  const failed = (await preflight(config, false)).filter(({ state }) => state === "failed");
  if (failed.length === 0) return;
  const lines = failed.map(({ found, remedy }) => `${found}\n  remedy: ${remedy}`);
  throw new ConfigError(lines.join("\n"));
}

function checkRoot(uid = process.getuid?.()): Check {
  const name = "root";
  if (uid === 0) return { name, state: "ok", found: "runs as root", remedy: "" };
  const found = `the service mounts file systems and makes networks, which needs root; this is user ${uid}`;
  return { name, state: "failed", found, remedy: "run the command as root, for example with sudo -i" };
}

const writableByOthers = 0o022;

/**
 * The service runs programs of these folders and opens their files as root: nobody else may have put a file, a link or a
 * FIFO there. Folders that are not there yet are made by the start. `uid`: the service's user; default: root.
 */
export async function checkOwners(folders: readonly string[], uid = 0): Promise<Check> {
  const name = "owners";
  const failed = (found: string, remedy: string): Check => ({ name, state: "failed", found, remedy });
  for (const folder of folders) {
    const status = await stat(folder).catch(() => undefined);
    if (status === undefined) continue;
    // Another user than root, who asks what is missing, may not look into it.
    const entries = (await readdir(folder).catch(() => [])).map((entry) => join(folder, entry));
    for (const path of [folder, ...entries]) {
      const owner = (await lstat(path).catch(() => undefined))?.uid ?? uid;
      if (owner !== uid)
        return failed(
          `${path} belongs to user ${owner}, who can change what the service runs`,
          `look at what is in ${folder}, then remove it, or take it over with chown -R ${uid}:${uid} ${folder}`,
        );
    }
    if ((status.mode & writableByOthers) !== 0)
      return failed(`others may write into ${folder}`, `chmod go-w ${folder}`);
  }
  return { name, state: "ok", found: "nobody else may write into home and cache", remedy: "" };
}

export async function checkSystem(text?: string): Promise<Check> {
  const release = text ?? (await readFile("/etc/os-release", "utf8").catch(() => ""));
  const field = (key: string): string => new RegExp(`^${key}="?([^"\n]*)"?$`, "m").exec(release)?.[1] ?? "";
  const found = field("PRETTY_NAME") || "an unknown system";
  const name = "system";
  const isDebian = [field("ID"), ...field("ID_LIKE").split(" ")].includes("debian");
  if (!isDebian)
    return {
      name,
      state: "failed",
      found: `this is ${found}; the set-up installs Debian packages`,
      remedy: "use a machine, or a virtual machine, with Debian 12",
    };
  const isTested = field("ID") === "debian" && field("VERSION_ID") === "12";
  return isTested
    ? { name, state: "ok", found, remedy: "" }
    : {
        name,
        state: "warning",
        found: `this is ${found}; Cloche is tested on Debian 12`,
        remedy: "use Debian 12",
      };
}

interface Port {
  setting: string;
  host: string;
  port: number;
}

async function checkPorts(config: Config, isRunning: boolean): Promise<Check[]> {
  const ports: Port[] = [
    { setting: "CLOCHE_GATEWAY_PORT", host: config.gatewayHost, port: config.gatewayPort },
    { setting: "CLOCHE_EDGE_PORT", host: config.edgeHost, port: config.edgePort },
    { setting: "CLOCHE_EDGE_HTTP_PORT", host: "127.0.0.1", port: config.edgeHttpPort },
    { setting: "CLOCHE_E2B_PORT", host: "127.0.0.1", port: config.e2bPort },
    { setting: "CLOCHE_MCP_PORT", host: config.gatewayHost, port: config.mcpPort },
    { setting: "CLOCHE_METRICS_PORT", host: "127.0.0.1", port: config.metricsPort },
  ].filter(({ port }) => port > 0);
  return Promise.all(
    ports.map(async ({ setting, host, port }, index): Promise<Check> => {
      const name = `port ${port}`;
      const twin = ports.slice(0, index).find((one) => one.port === port);
      if (twin !== undefined)
        return {
          name,
          state: "failed",
          found: `${twin.setting} and ${setting} are both ${port}`,
          remedy: `set ${setting} to another port`,
        };
      if (isRunning) return { name, state: "ok", found: `${setting}: used by this service`, remedy: "" };
      const code = await whyNotFree(host, port);
      if (code === "") return { name, state: "ok", found: `${setting}: free`, remedy: "" };
      if (code === "EADDRINUSE")
        return {
          name,
          state: "failed",
          found: `port ${port} is in use; set ${setting} to a free one`,
          remedy: `ss -ltnp 'sport = :${port}' names the program that uses it`,
        };
      return {
        name,
        state: "failed",
        found: `${host} port ${port} (${setting}) cannot be opened: ${code}`,
        remedy: "set an address of this machine and another port",
      };
    }),
  );
}

/** Empty: the port can be opened; else the code of the error. */
function whyNotFree(host: string, port: number): Promise<string> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve("")));
  });
}

async function checkSpace({ home, cache }: Config): Promise<Check> {
  const hasPool = existsSync(join(home, "pool"));
  const needed = (hasPool ? laterBytes : poolBytes) + (existsSync(cache) ? 0 : artifactBytes);
  let place = home;
  while (!existsSync(place)) place = dirname(place);
  const { bavail, bsize } = await statfs(place);
  const free = bavail * bsize;
  const space = `${(free / gib).toFixed(1)} GiB free for ${home}`;
  if (free >= needed) return { name: "disk", state: "ok", found: space, remedy: "" };
  return {
    name: "disk",
    state: "failed",
    found: `${space}; ${hasPool ? "a" : "a first"} start needs ${needed / gib} GiB`,
    remedy: "free some space, or set CLOCHE_HOME to a folder on a larger disk",
  };
}
