import { clientKeyFile, hostKeyAlias, knownHostsFile } from "./keys.ts";

/** Settings of OpenSSH's client with the names of `ssh_config`, in order. */
export type ClientSettings = readonly (readonly [name: string, value: string])[];

/**
 * Settings with which OpenSSH's client reaches a sandbox by the ProxyCommand `command` (words). Only the keys in `folder` are used: no key
 * of the user is offered, and no file of the user is read or written.
 */
export function clientSettings(folder: string, command: readonly string[]): ClientSettings {
  return [
    ["ProxyCommand", withoutTokens(command.map(shellQuote).join(" "))],
    ["IdentityFile", quoted(clientKeyFile(folder))],
    ["IdentitiesOnly", "yes"],
    ["PreferredAuthentications", "publickey"],
    ["HostKeyAlias", hostKeyAlias],
    ["UserKnownHostsFile", quoted(knownHostsFile(folder))],
    ["GlobalKnownHostsFile", "/dev/null"],
    ["StrictHostKeyChecking", "yes"],
    ["UpdateHostKeys", "no"],
  ];
}

/** The `Host` entry of one sandbox for an `ssh_config`. */
export function hostEntry(names: readonly string[], settings: ClientSettings): string {
  return [`Host ${names.join(" ")}`, ...settings.map(([name, value]) => `  ${name} ${value}`), ""].join("\n");
}

/** Quotes a word for the shell that runs the command. */
const shellQuote = (text: string): string =>
  /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/** Escapes `%`, which begins a token of ssh. */
const withoutTokens = (text: string): string => text.replaceAll("%", "%%");
const quoted = (path: string): string => {
  const text = withoutTokens(path);
  return /[\s"']/.test(text) ? `"${text}"` : text;
};
