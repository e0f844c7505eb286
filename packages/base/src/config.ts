import { readFileSync } from "node:fs";
import { availableParallelism, totalmem } from "node:os";
import { defaults, nearestName } from "@cloche/protocol";
import { parse as parseYaml } from "yaml";
import { clusterSettings } from "./cluster-settings.ts";
import {
  absolutePath,
  anyText,
  dnsName,
  hostNames,
  integer,
  ipAddresses,
  limitText,
  matching,
  onOrOff,
  oneOf,
  optionalPath,
  port,
  portText,
  type Setting,
  setting,
  zeroOr,
} from "./setting.ts";

/** A setting that cannot be used: names it and says what would be right. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
}

/**
 * Memory of a ready machine, without the memory that it shares with others; and the share (1/6) of all memory that
 * ready machines may use.
 */
const warmMachineBytes = 40 * 1_048_576;
const warmPoolPart = 6;

const settings = {
  home: setting("CLOCHE_HOME", "home", "/var/lib/cloche", absolutePath, "an absolute path"),
  cache: setting("CLOCHE_CACHE", "cache", "", optionalPath, "an absolute path, or empty for <home>/cache"),
  artifacts: setting(
    "CLOCHE_ARTIFACTS",
    "artifacts",
    "",
    optionalPath,
    "an absolute path of a folder with artifacts that are built already, or empty",
  ),
  gatewayHost: setting(
    "CLOCHE_GATEWAY_HOST",
    "gateway_host",
    "127.0.0.1",
    matching(/^[0-9a-f.:]+$/),
    "an IP address",
  ),
  gatewayPort: setting("CLOCHE_GATEWAY_PORT", "gateway_port", defaults.gatewayPort as number, port, portText),
  edgeHost: setting("CLOCHE_EDGE_HOST", "edge_host", "127.0.0.1", matching(/^[0-9a-f.:]+$/), "an IP address"),
  edgePort: setting("CLOCHE_EDGE_PORT", "edge_port", defaults.edgePort as number, port, portText),
  edgeHttpPort: setting(
    "CLOCHE_EDGE_HTTP_PORT",
    "edge_http_port",
    defaults.edgeHttpPort as number,
    zeroOr(port),
    "a TCP port from 1 to 65535 for the edge without TLS on the loopback, or 0 for none",
  ),
  mcpPort: setting(
    "CLOCHE_MCP_PORT",
    "mcp_port",
    defaults.mcpPort as number,
    zeroOr(port),
    "a TCP port from 1 to 65535 for MCP over HTTP, or 0 for none",
  ),
  mcpHosts: setting(
    "CLOCHE_MCP_HOSTS",
    "mcp_hosts",
    [] as string[],
    hostNames,
    "lower-case DNS names or IP addresses without ports, separated by commas, or empty",
  ),
  e2bPort: setting(
    "CLOCHE_E2B_PORT",
    "e2b_port",
    defaults.e2bPort as number,
    zeroOr(port),
    "a TCP port from 1 to 65535 for E2B's clients, or 0 for no such endpoint",
  ),
  baseDomain: setting(
    "CLOCHE_BASE_DOMAIN",
    "base_domain",
    defaults.baseDomain as string,
    dnsName,
    "a lower-case DNS name, such as cloche.localhost",
  ),
  runtime: setting(
    "CLOCHE_RUNTIME",
    "runtime",
    "auto",
    oneOf("auto", "gvisor", "qemu"),
    "auto, gvisor or qemu",
  ),
  tokenLifetimeSeconds: setting(
    "CLOCHE_TOKEN_LIFETIME_SECONDS",
    "token_lifetime_seconds",
    defaults.tokenLifetimeSeconds as number,
    integer(1, 2_592_000),
    "whole seconds from 1 to 2592000",
  ),
  databaseUrl: setting(
    "CLOCHE_DATABASE_URL",
    "database_url",
    "",
    matching(/^(postgres(ql)?:\/\/.+)?$/),
    "postgres://…, or empty for the embedded database",
  ),
  blobUrl: setting(
    "CLOCHE_BLOB_URL",
    "blob_url",
    "",
    matching(/^((s3:\/\/|https?:\/\/|\/).+)?$/),
    "an absolute directory, an S3 URL (s3://bucket/prefix?endpoint=…), or empty for <home>/blobs",
  ),
  subnet: setting(
    "CLOCHE_SUBNET",
    "subnet",
    "",
    matching(/^(\d+\.\d+\.0\.0\/16)?$/),
    "an IPv4 /16 such as 10.231.0.0/16, or empty for one that is free",
  ),
  dnsServers: setting(
    "CLOCHE_DNS_SERVERS",
    "dns_servers",
    [] as string[],
    ipAddresses,
    "IP addresses separated by commas, or empty for those of /etc/resolv.conf",
  ),
  poolGb: setting(
    "CLOCHE_POOL_GB",
    "pool_gb",
    0,
    integer(0, 1_000_000),
    "whole GiB, or 0 for most of the free space",
  ),
  hostInPod: setting(
    "CLOCHE_HOST_IN_POD",
    "host_in_pod",
    false,
    onOrOff,
    "1 in a pod of Kubernetes that its machines outlive, else 0",
  ),
  maxRequestsPerSecond: setting(
    "CLOCHE_MAX_REQUESTS_PER_SECOND",
    "max_requests_per_second",
    defaults.requestsPerSecond as number,
    integer(0, 1_000_000),
    limitText,
  ),
  maxCheckpoints: setting(
    "CLOCHE_MAX_CHECKPOINTS",
    "max_checkpoints",
    defaults.checkpointLimits.count,
    integer(0, 1_000_000),
    limitText,
  ),
  maxCheckpointGb: setting(
    "CLOCHE_MAX_CHECKPOINT_GB",
    "max_checkpoint_gb",
    defaults.checkpointGb as number,
    integer(0, 1_000_000),
    limitText,
  ),
  maxSandboxes: setting(
    "CLOCHE_MAX_SANDBOXES",
    "max_sandboxes",
    defaults.teamLimits.sandboxes,
    integer(0, 1_000_000),
    limitText,
  ),
  maxConcurrentCalls: setting(
    "CLOCHE_MAX_CONCURRENT_CALLS",
    "max_concurrent_calls",
    defaults.teamLimits.concurrentCalls,
    integer(0, 1_000_000),
    limitText,
  ),
  maxCallsPerSecond: setting(
    "CLOCHE_MAX_CALLS_PER_SECOND",
    "max_calls_per_second",
    defaults.teamLimits.callsPerSecond,
    integer(0, 1_000_000),
    limitText,
  ),
  runsc: setting(
    "CLOCHE_RUNSC",
    "runsc",
    "",
    optionalPath,
    "an absolute path of a runsc binary or of the folder of a gVisor release, or empty",
  ),
  metricsPort: setting(
    "CLOCHE_METRICS_PORT",
    "metrics_port",
    0,
    integer(0, 65_535),
    "a TCP port from 1 to 65535 for the operator on 127.0.0.1, or 0 for none",
  ),
  trace: setting(
    "CLOCHE_TRACE",
    "trace",
    "off",
    oneOf("off", "operations"),
    "off, or operations for a log line with the steps of each",
  ),
  vmHangSeconds: setting(
    "CLOCHE_VM_HANG_SECONDS",
    "vm_hang_seconds",
    0,
    zeroOr(integer(10, 86_400)),
    "whole seconds from 10 to 86400 after which a virtual machine that hangs is ended, or 0 for 60 (emulated: 300)",
  ),
  gvisorHangSeconds: setting(
    "CLOCHE_GVISOR_HANG_SECONDS",
    "gvisor_hang_seconds",
    60,
    integer(10, 86_400),
    "whole seconds from 10 to 86400 after which a gVisor sandbox that hangs is ended",
  ),
  dozeSeconds: setting(
    "CLOCHE_DOZE_SECONDS",
    "doze_seconds",
    defaults.dozeSeconds as number,
    integer(0, 86_400),
    "whole seconds from 0 (never) to 86400 after which a sandbox in which nothing runs is frozen until it is asked",
  ),
  drainSeconds: setting(
    "CLOCHE_DRAIN_SECONDS",
    "drain_seconds",
    5,
    integer(0, 3_600),
    "whole seconds from 0 to 3600 that requests under way get when the service stops",
  ),
  corsOrigins: setting(
    "CLOCHE_CORS_ORIGINS",
    "cors_origins",
    "*",
    anyText,
    "* or origins separated by commas",
  ),
  logLevel: setting(
    "CLOCHE_LOG_LEVEL",
    "log_level",
    "info",
    oneOf("debug", "info", "warn", "error", "silent"),
    "debug, info, warn, error or silent",
  ),
  warmPool: setting(
    "CLOCHE_WARM_POOL",
    "warm_pool",
    Math.min(4, availableParallelism()),
    integer(0, 1_000),
    "how many machines are kept ready, 0 to 1000",
  ),
  warmPoolMax: setting(
    "CLOCHE_WARM_POOL_MAX",
    "warm_pool_max",
    Math.min(1_000, Math.floor(totalmem() / warmPoolPart / warmMachineBytes)),
    integer(0, 1_000),
    "how many machines are kept ready at most after a burst, 0 to 1000",
  ),
  ...clusterSettings,
} as const;

export type Config = { [Name in keyof typeof settings]: ReturnType<(typeof settings)[Name]["parse"]> };

/** Variables of our clients and tests, which the service passes over. */
const otherNames = new Set([
  "CLOCHE_CONFIG",
  "CLOCHE_URL",
  "CLOCHE_API_KEY",
  "CLOCHE_CA_CERT",
  "CLOCHE_EDGE_URL",
  "CLOCHE_GATEWAY_URL",
  "CLOCHE_SANDBOX",
  "CLOCHE_TOKEN",
]);

/** `CLOCHE_…` variables that no program of ours reads. */
export const unknownSettings = (env: NodeJS.ProcessEnv): string[] => {
  const known = new Set<string>(Object.values(settings).map((one) => one.env));
  return Object.keys(env).filter(
    (name) => name.startsWith("CLOCHE_") && !known.has(name) && !otherNames.has(name),
  );
};

/** Throws for a variable that differs from a setting by a letter or two: the setting that was meant would keep its default. */
function refuseMisspelt(env: NodeJS.ProcessEnv): void {
  for (const name of unknownSettings(env)) {
    const mistakesMax = name.length - "CLOCHE_".length <= 4 ? 1 : 2;
    const meant = nearestName(
      name,
      Object.values(settings).map((one) => one.env),
      mistakesMax,
    );
    if (meant !== undefined) throw new ConfigError(`there is no setting ${name}; did you mean ${meant}?`);
  }
}

/**
 * Settings from the environment, else from the config file (`CLOCHE_CONFIG`, default `<home>/config.yaml`; YAML or
 * JSON), else their defaults, of which `defaultsOfRole` replaces some. Throws ConfigError naming the setting, where it was set and what would be right.
 */
export function loadConfig(
  env: NodeJS.ProcessEnv,
  readText: (path: string) => string | undefined = readIfThere,
  defaultsOfRole: Partial<Config> = {},
): Config {
  refuseMisspelt(env);
  const home = env["CLOCHE_HOME"] || settings.home.default;
  const configPath = env["CLOCHE_CONFIG"] || `${home}/config.yaml`;
  const file = parseConfigFile(configPath, readText(configPath), env["CLOCHE_CONFIG"] !== undefined);
  const config: Record<string, unknown> = {};
  for (const [name, one] of Object.entries(settings) as [string, Setting<unknown>][]) {
    config[name] =
      readSetting(one, env, file, configPath) ?? defaultsOfRole[name as keyof Config] ?? one.default;
  }
  const known = new Set(Object.values(settings).map((one) => one.key as string));
  const unknown = Object.keys(file).find((key) => !known.has(key));
  if (unknown !== undefined) {
    const meant = nearestName(unknown, known);
    throw new ConfigError(
      `setting ${unknown} in ${configPath} is unknown; known are ${[...known].join(", ")}${meant === undefined ? "" : `; did you mean ${meant}?`}`,
    );
  }
  config["cache"] ||= `${config["home"] as string}/cache`;
  return config as Config;
}

/** The text of a value. A list is joined with commas; objects are JSON, because some cannot become a string. */
function textOf(value: unknown): string {
  const isObject = (one: unknown): boolean => typeof one === "object" && one !== null;
  if (Array.isArray(value) ? !value.some(isObject) : !isObject(value)) return String(value);
  try {
    return JSON.stringify(value);
  } catch {
    return "a value that refers to itself";
  }
}

/** Undefined: it is not set. */
function readSetting(
  one: Setting<unknown>,
  env: NodeJS.ProcessEnv,
  file: Record<string, unknown>,
  path: string,
): unknown {
  const fromEnv = env[one.env];
  const fromFile = file[one.key];
  if ((fromEnv === undefined || fromEnv === "") && fromFile === undefined) return undefined;
  const useEnv = fromEnv !== undefined && fromEnv !== "";
  const text = useEnv ? fromEnv : textOf(fromFile);
  try {
    return one.parse(text);
  } catch {
    const where = useEnv ? one.env : `${one.key} in ${path}`;
    throw new ConfigError(`${where} is ${JSON.stringify(text)}; it must be ${one.expects}`);
  }
}

function parseConfigFile(
  path: string,
  text: string | undefined,
  mustExist: boolean,
): Record<string, unknown> {
  if (text === undefined) {
    if (mustExist) throw new ConfigError(`CLOCHE_CONFIG names ${path}, which does not exist`);
    return {};
  }
  let parsed: unknown;
  try {
    parsed = parseYaml(text);
  } catch (error) {
    throw new ConfigError(`${path} is not valid YAML: ${(error as Error).message}`);
  }
  if (parsed === null || parsed === undefined) return {};
  if (typeof parsed !== "object" || Array.isArray(parsed))
    throw new ConfigError(`${path} must hold "setting: value" lines`);
  return parsed as Record<string, unknown>;
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
