import { readFile } from "node:fs/promises";
import type { Connection } from "@cloche/sdk/node";
import {
  connectionOf,
  type Context,
  contextInUse,
  localContext,
  readContexts,
  writeContexts,
} from "../contexts.ts";
import { NotFoundError, UsageError } from "../exit-codes.ts";
import { present } from "../options.ts";
import { readSecret } from "../secret-input.ts";
import { printJson, printLines, printNotice, printTable } from "../terminal.ts";
import type { Registry } from "../register.ts";

interface LoginFlags {
  name?: string;
  caCert?: string;
  edgeUrl?: string;
  baseDomain?: string;
}

/** login, logout, context ls, use. */
export function addContextCommands(registry: Registry): void {
  const { program } = registry;
  program
    .command("login <url>")
    .description("use the service at this gateway URL from now on; checks the API key and keeps it")
    .option("--name <context>", "how this service is called here; default its host name")
    .option("--ca-cert <file>", "PEM of the authority of the edge's certificate, if it is not a public one")
    .option("--edge-url <url>", "address for all sandbox domains, if they do not resolve here")
    .option("--base-domain <domain>", "sandboxes are <id>.<base domain>; with --edge-url")
    .addHelpText(
      "after",
      `
The API key is read from CLOCHE_API_KEY, or asked for at a terminal, or read from standard input. It is kept in
~/.config/cloche/contexts.json, which only you may read.

Examples:
  cloche login https://cloche.example.org
  cloche login http://127.0.0.1:7080 --name here < key.txt`,
    )
    .action((url: string, flags: LoginFlags) => login(registry, url, flags));
  program
    .command("logout [context]")
    .description(
      "forget a service and its API key; default the current one. The key itself stays valid: see keys revoke",
    )
    .action((name: string | undefined) => logout(registry, name));
  const context = program.command("context").description("services that you have logged in to");
  context
    .command("ls")
    .description("list them; * is the current one")
    .action(() => list(registry));
  context
    .command("use <context>")
    .description(`make one the current one; ${localContext} is the service of this machine`)
    .addHelpText("after", "\nFor one call: CLOCHE_CONTEXT=staging cloche ls")
    .action((name: string) => use(registry, name));
}

const isJson = ({ program }: Registry): boolean => program.opts<{ json?: boolean }>().json === true;

async function login(registry: Registry, url: string, flags: LoginFlags): Promise<void> {
  const { terminal } = registry;
  const { env } = terminal;
  const { hostname, protocol } = parsed(url);
  const name = flags.name ?? hostname;
  if (name === localContext || !/^[\w.-]{1,64}$/.test(name))
    throw new UsageError(`a context cannot be called ${JSON.stringify(name)}; give another --name`);
  const key = env["CLOCHE_API_KEY"]?.trim() || (await readSecret(terminal, `API key of ${url}: `));
  if (key === "") throw new UsageError("the API key is empty; make one with cloche keys create");
  const isLoopback = /^(localhost|127\.[\d.]+|\[::1\])$/.test(hostname);
  if (protocol === "http:" && !isLoopback)
    printNotice(terminal, `${url} is not encrypted: who sees the connection can read the API key`);
  const context: Context = {
    url: url.replace(/\/+$/, ""),
    api_key: key,
    ...present({
      ca_cert: flags.caCert === undefined ? undefined : await readFile(flags.caCert, "utf8"),
      edge_url: flags.edgeUrl,
      base_domain: flags.baseDomain,
    }),
  };
  await check(registry, connectionOf(context, {}));
  const known = readContexts(env);
  await writeContexts(env, { current: name, contexts: { ...known.contexts, [name]: context } });
  if (isJson(registry)) return printJson(terminal, { context: name, url: context.url });
  await printLines(terminal, name);
}

function parsed(url: string): URL {
  const address = URL.canParse(url) ? new URL(url) : undefined;
  if (address !== undefined && /^https?:$/.test(address.protocol)) return address;
  throw new UsageError(`${url} is no gateway's URL; it must be like https://cloche.example.org`);
}

/** Throws unless the service answers and takes the key. */
async function check({ terminal }: Registry, named: Partial<Connection>): Promise<void> {
  const cloche = await terminal.connect(named);
  try {
    await cloche.gateway.listSandboxes({ page_size: 1 }, { signal: terminal.signal });
  } finally {
    await cloche.close();
  }
}

async function logout(registry: Registry, asked: string | undefined): Promise<void> {
  const { terminal } = registry;
  const { current, contexts } = readContexts(terminal.env);
  const name = asked ?? current;
  if (name === undefined) throw new UsageError("no service is logged in to; see cloche context ls");
  if (!Object.hasOwn(contexts, name)) throw noContext(name);
  const { [name]: _gone, ...others } = contexts;
  await writeContexts(terminal.env, {
    contexts: others,
    ...(current !== undefined && current !== name && { current }),
  });
  if (isJson(registry)) return printJson(terminal, { forgotten: name });
  await printLines(terminal, name);
}

async function list(registry: Registry): Promise<void> {
  const { terminal } = registry;
  const { contexts, current } = readContexts(terminal.env);
  const all = Object.entries(contexts).map(([name, { url }]) => ({ name, url, current: name === current }));
  if (isJson(registry)) return printJson(terminal, { contexts: all });
  const { env } = terminal;
  const inUse = contextInUse(env)?.name;
  const byEnvironment = env["CLOCHE_URL"] || env["CLOCHE_GATEWAY_URL"] || env["CLOCHE_HOME"];
  const rows = all.map(({ name, url }) => [name === inUse ? "*" : "", name, url]);
  rows.unshift([
    inUse === undefined && !byEnvironment ? "*" : "",
    localContext,
    "the service of this machine",
  ]);
  await printTable(terminal, ["", "NAME", "GATEWAY"], rows);
  if (inUse === undefined && byEnvironment)
    printNotice(terminal, "environment variables (CLOCHE_URL or CLOCHE_HOME) name the service");
}

async function use(registry: Registry, name: string): Promise<void> {
  const { terminal } = registry;
  const { contexts } = readContexts(terminal.env);
  if (name !== localContext && !Object.hasOwn(contexts, name)) throw noContext(name);
  await writeContexts(terminal.env, { contexts, ...(name !== localContext && { current: name }) });
  if (isJson(registry)) return printJson(terminal, { context: name });
  await printLines(terminal, name);
}

const noContext = (name: string): NotFoundError =>
  new NotFoundError(`there is no context ${JSON.stringify(name)}; see cloche context ls, or cloche login`);
