import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import type { Sandbox } from "@cloche/sdk";
import { configHome, contextInUse } from "../contexts.ts";
import { NotFoundError } from "../exit-codes.ts";
import { collect } from "../options.ts";
import { clientSettings, hostEntry, type ClientSettings } from "../ssh/client-settings.ts";
import { keepKeys, makeKeys, readServerKeys } from "../ssh/keys.ts";
import { startServer } from "../ssh/server.ts";
import { printJson, write, type Terminal } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

/** The same default as exec. */
const defaultUser = "root";

/** ssh, ssh-config, and the ProxyCommand that they use. */
export function addSshCommands(registry: Registry): void {
  const { program } = registry;
  program
    .command("ssh <sandbox> [command...]")
    .description(
      "OpenSSH's own client into a sandbox, as <sandbox> or <user>@<sandbox>; keys are made for it alone",
    )
    .option("-l, --login <user>", `default ${defaultUser}; there is also user`)
    .option("-L <forward>", "[address:]port:host:port, from here into the sandbox; repeatable", collect)
    .option("-R <forward>", "from the sandbox to here; repeatable", collect)
    .option("-D <port>", "a SOCKS proxy here that connects from the sandbox; repeatable", collect)
    .option("-o <setting>", "any of ssh_config's, as Name=value; repeatable", collect)
    .option("-N", "no command: forwards alone")
    .option("-t", "a terminal for a command too")
    .option("-T", "no terminal")
    .option("-A", "pass the local agent on")
    .option("-v", "tell what ssh does; repeatable", (_, before: number) => before + 1, 0)
    .addHelpText(
      "after",
      `
Exit code: the command's own; 255 when the connection failed. For scp, sftp and editors see ssh-config.

Examples:
  cloche ssh demo
  cloche ssh user@demo -- uname -a
  cloche ssh demo -N -L 5432:127.0.0.1:5432
  rsync -e 'cloche ssh' -a ./site/ demo:/srv/www
  GIT_SSH_COMMAND='cloche ssh' git clone demo:/srv/repo`,
    )
    .action(act(registry, ssh));
  program
    .command("ssh-config [sandboxes...]")
    .description(
      "print host entries for ~/.ssh/config, with which ssh, scp, sftp, rsync, git and editors find sandboxes",
    )
    .option("-l, --login <user>", `default ${defaultUser}; there is also user`)
    .addHelpText(
      "after",
      `
Without a sandbox: all of the team's. A sandbox is known by its id, and as <name>.cloche where only one has that name.

Examples:
  cloche ssh-config demo >> ~/.ssh/config && ssh demo.cloche
  cloche ssh-config > /tmp/boxes && scp -F /tmp/boxes ./file demo.cloche:/root/`,
    )
    .action(act(registry, config));
  program.command("ssh-proxy <sandbox> <keys>", { hidden: true }).action(act(registry, proxy));
}

interface SshFlags {
  login?: string;
  L?: string[];
  R?: string[];
  D?: string[];
  o?: string[];
  N?: boolean;
  t?: boolean;
  T?: boolean;
  A?: boolean;
  v: number;
}

async function ssh(run: Run, nameOrId: string, command: string[], flags: SshFlags): Promise<number> {
  const [, named, name = nameOrId] = /^([a-z_][a-z0-9_-]*)@(.+)$/.exec(nameOrId) ?? [];
  const sandbox = await run.sandbox(name);
  const folder = await mkdtemp(join(tmpdir(), "cloche-ssh-"));
  try {
    await makeKeys(folder);
    const settings = clientSettings(folder, [...ourselves(), "ssh-proxy", sandbox.id, folder]);
    const args = [
      ...settings.flatMap(([setting, value]) => ["-o", `${setting}=${value}`]),
      "-l",
      flags.login ?? named ?? defaultUser,
      ...passedOn(flags),
      "--",
      sandbox.id,
      ...command,
    ];
    return await runClient(args, run.terminal.env);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function passedOn(flags: SshFlags): string[] {
  const repeated = (["L", "R", "D", "o"] as const).flatMap((name) =>
    (flags[name] ?? []).flatMap((value) => [`-${name}`, value]),
  );
  const single = (["N", "t", "T", "A"] as const).flatMap((name) =>
    flags[name] === true ? [`-${name}`] : [],
  );
  return [...repeated, ...single, ...Array<string>(flags.v).fill("-v")];
}

/** Runs OpenSSH's client. It owns the terminal, so this process ignores Ctrl-C. */
async function runClient(args: readonly string[], env: NodeJS.ProcessEnv): Promise<number> {
  const client = spawn("ssh", args, { stdio: "inherit", env });
  try {
    const [code, signal] = (await once(client, "exit")) as [number | null, NodeJS.Signals | null];
    return code ?? 128 + (signal === null ? 0 : constants.signals[signal]);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    throw new NotFoundError("there is no ssh; install OpenSSH's client (Debian: openssh-client)");
  }
}

/** The words by which other programs run this command. */
const ourselves = (): string[] => [process.execPath, ...process.execArgv, process.argv[1] ?? ""];

async function config(run: Run, namesOrIds: string[], flags: { login?: string }): Promise<void> {
  const folder = join(configHome(run.terminal.env), "cloche", "ssh");
  const [all, asked] = await sandboxesOf(run, namesOrIds);
  await keepKeys(folder);
  const names = new Map<string, number>();
  for (const { info } of all) names.set(info.name, (names.get(info.name) ?? 0) + 1);
  const hosts = asked.map(({ id, info: { name } }) => {
    const alias = names.get(name) === 1 && /^[A-Za-z0-9][\w.-]*$/.test(name) ? [`${name}.cloche`] : [];
    const command = [...settingsOf(run.terminal), ...ourselves(), "ssh-proxy", id, folder];
    const settings: ClientSettings = [
      ["User", flags.login ?? defaultUser],
      ...clientSettings(folder, command),
    ];
    return { names: [...alias, id], settings };
  });
  if (run.json)
    return printJson(run.terminal, {
      hosts: hosts.map((host) => ({ names: host.names, settings: Object.fromEntries(host.settings) })),
    });
  await write(run.terminal.stdout, hosts.map((host) => hostEntry(host.names, host.settings)).join("\n"));
}

/** All sandboxes that have or will have a disk, and the requested ones among them. */
async function sandboxesOf(run: Run, namesOrIds: readonly string[]): Promise<[Sandbox[], Sandbox[]]> {
  const all: Sandbox[] = [];
  for await (const sandbox of run.cloche.list({}, { signal: run.signal })) {
    const { state } = sandbox.info;
    if (state !== "SANDBOX_STATE_DELETING" && state !== "SANDBOX_STATE_ERROR") all.push(sandbox);
  }
  if (namesOrIds.length === 0) return [all, all];
  return [all, await Promise.all(namesOrIds.map((nameOrId) => run.sandbox(nameOrId)))];
}

/** Settings for editors that run ssh without this shell's environment. Without the API key, since others may read the file. */
function settingsOf({ env }: Terminal): string[] {
  const pairs = Object.entries(env).filter(
    ([name, value]) => name.startsWith("CLOCHE_") && name !== "CLOCHE_API_KEY" && value !== undefined,
  );
  // Another context may be the current one by then.
  const inUse = contextInUse(env);
  if (inUse !== undefined && env["CLOCHE_CONTEXT"] === undefined) pairs.push(["CLOCHE_CONTEXT", inUse.name]);
  return pairs.length === 0 ? [] : ["env", ...pairs.map(([name, value]) => `${name}=${value}`)];
}

/** The ProxyCommand of ssh: starts a server for one connection and joins it to standard input and output. */
async function proxy(run: Run, nameOrId: string, folder: string): Promise<void> {
  const over = new AbortController();
  const signal = AbortSignal.any([run.signal, over.signal]);
  const keys = await readServerKeys(folder);
  const sandbox = await run.sandbox(nameOrId);
  const { port } = await startServer(sandbox, keys, signal);
  const connection = await sandbox.connectPort(port, { signal });
  const { stdin, stdout } = run.terminal;
  const up = (async () => {
    for await (const piece of stdin) await connection.write(piece as Buffer);
    // Not half of it: ssh has gone, and its server goes too, whatever it waits for.
    connection.close();
  })();
  up.catch(() => connection.close());
  for await (const piece of connection) await write(stdout, piece);
  connection.close();
  // ssh may still have us wait for words that nobody will hear.
  stdin.destroy();
  await up.catch(() => undefined);
  over.abort();
}
