import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { NotFoundError } from "../exit-codes.ts";
import type { ServerKeys } from "./server.ts";

/** The name of the host key in `known_hosts`. The same for all sandboxes, so that they can share the folder. */
export const hostKeyAlias = "cloche";

export const clientKeyFile = (folder: string): string => join(folder, "key");
export const knownHostsFile = (folder: string): string => join(folder, "known_hosts");
const hostKeyFile = (folder: string): string => join(folder, "host_key");

/**
 * Makes a client's key, a server's key and a `known_hosts` with the server's key, in an empty folder. The keys open nothing by themselves:
 * only a server that was started with them accepts them, and starting a server needs a token of the sandbox.
 */
export async function makeKeys(folder: string): Promise<void> {
  await makeKey(clientKeyFile(folder));
  await makeKey(hostKeyFile(folder));
  const host = await readFile(`${hostKeyFile(folder)}.pub`, "utf8");
  await writeFile(knownHostsFile(folder), `${hostKeyAlias} ${host}`, { mode: 0o600 });
}

/** As `makeKeys`, if the folder does not exist. It appears complete, so several processes may do this at once. */
export async function keepKeys(folder: string): Promise<void> {
  if (await hasKeys(folder)) return;
  await mkdir(dirname(folder), { recursive: true, mode: 0o700 });
  const made = await mkdtemp(`${folder}.`);
  try {
    await makeKeys(made);
    await rename(made, folder);
  } catch (error) {
    if (await hasKeys(folder)) return;
    if ((error as NodeJS.ErrnoException).code !== "ENOTEMPTY") throw error;
    throw new Error(`the SSH keys in ${folder} are not whole; remove the folder and run the command again`);
  } finally {
    await rm(made, { recursive: true, force: true });
  }
}

const hasKeys = (folder: string): Promise<boolean> =>
  readServerKeys(folder).then(
    () => true,
    () => false,
  );

export async function readServerKeys(folder: string): Promise<ServerKeys> {
  const read = (file: string): Promise<string> => readFile(file, "utf8");
  try {
    const [hostKey, clientKey] = await Promise.all([
      read(hostKeyFile(folder)),
      read(`${clientKeyFile(folder)}.pub`),
      read(knownHostsFile(folder)),
    ]);
    return { hostKey, clientKey: clientKey.trim() };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    throw new NotFoundError(`there are no SSH keys in ${folder}; run cloche ssh-config again`);
  }
}

async function makeKey(file: string): Promise<void> {
  try {
    await promisify(execFile)("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-C", "cloche", "-f", file]);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    throw new NotFoundError("there is no ssh-keygen; install OpenSSH's client (Debian: openssh-client)");
  }
}
