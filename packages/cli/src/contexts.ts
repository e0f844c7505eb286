/**
 * Services that the user has logged in to: `~/.config/cloche/contexts.json`, readable by the user alone. One of them
 * may be the current one. Environment variables go over it, each over its own field.
 */
import { randomBytes } from "node:crypto";
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { ClocheSdkError } from "@cloche/sdk";
import type { Connection } from "@cloche/sdk/node";

export interface Context {
  url: string;
  api_key: string;
  /** PEM of the authority of the edge's certificate. */
  ca_cert?: string;
  edge_url?: string;
  base_domain?: string;
}
export interface Contexts {
  /** Undefined: the service of this machine. */
  current?: string;
  contexts: Record<string, Context>;
}

/** The service of this machine, as a context. */
export const localContext = "local";

export const configHome = (env: NodeJS.ProcessEnv): string =>
  env["XDG_CONFIG_HOME"] || join(env["HOME"] || homedir(), ".config");

const contextsFile = (env: NodeJS.ProcessEnv): string => join(configHome(env), "cloche", "contexts.json");

export function readContexts(env: NodeJS.ProcessEnv): Contexts {
  const file = contextsFile(env);
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return { contexts: {} };
    throw wrong(`cannot read ${file}: ${(error as Error).message}`, error);
  }
  if ((statSync(file).mode & 0o077) !== 0)
    throw wrong(`${file} holds API keys and others may read it; run: chmod 600 ${file}`);
  try {
    const { current, contexts = {} } = JSON.parse(text) as Partial<Contexts>;
    return { contexts, ...(current !== undefined && { current }) };
  } catch (error) {
    throw wrong(`${file} is no JSON; repair or remove it, then log in again`, error);
  }
}

export async function writeContexts(env: NodeJS.ProcessEnv, contexts: Contexts): Promise<void> {
  const file = contextsFile(env);
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  const partial = `${file}.${randomBytes(6).toString("hex")}`;
  try {
    await writeFile(partial, `${JSON.stringify(contexts, null, 2)}\n`, { mode: 0o600, flag: "wx" });
    await rename(partial, file);
  } finally {
    await rm(partial, { force: true });
  }
}

/** The context that calls use; undefined: environment variables name the service, or it is the one of this machine. */
export function contextInUse(env: NodeJS.ProcessEnv): { name: string; context: Context } | undefined {
  if (env["CLOCHE_URL"] || env["CLOCHE_GATEWAY_URL"]) return undefined;
  const asked = env["CLOCHE_CONTEXT"];
  if (!asked && env["CLOCHE_HOME"]) return undefined;
  const { current, contexts } = readContexts(env);
  const name = asked || current;
  if (name === undefined || name === localContext) return undefined;
  const context = Object.hasOwn(contexts, name) ? contexts[name] : undefined;
  if (context === undefined)
    throw wrong(`there is no context ${JSON.stringify(name)}; see cloche context ls, or cloche login`);
  return { name, context };
}

/** What a context says of the connection, without what the environment says. */
export function connectionOf(context: Context, env: NodeJS.ProcessEnv): Partial<Connection> {
  return {
    gatewayUrl: context.url,
    ...(!env["CLOCHE_API_KEY"] && { apiKey: context.api_key }),
    ...(!env["CLOCHE_CA_CERT"] && { caCert: context.ca_cert }),
    ...(!env["CLOCHE_EDGE_URL"] && { edgeUrl: context.edge_url }),
    ...(!env["CLOCHE_BASE_DOMAIN"] && { baseDomain: context.base_domain }),
  };
}

const wrong = (message: string, cause?: unknown): ClocheSdkError =>
  new ClocheSdkError(message, { code: "configuration", cause });
