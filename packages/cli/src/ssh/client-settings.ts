import { clientKeyFile, hostKeyAlias, knownHostsFile } from "./keys.ts";

/** Settings of OpenSSH's client, as `ssh_config` names them, in its order. */
export type ClientSettings = readonly (readonly [name: string, value: string])[];

/**
 * How OpenSSH's client reaches a sandbox: `command`, as words, is its way there. Only the keys of `folder` count: none of the
 * user's is offered, and no file of the user's is asked or written.
 */
export function clientSettings(folder: string, command: readonly string[]): ClientSettings {
  return [
    ["ProxyCommand", withoutTokens(command.map(shellWord).join(" "))],
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

/** The `Host` entry of one sandbox, as it stands in an `ssh_config`. */
export function hostEntry(names: readonly string[], settings: ClientSettings): string {
  return [`Host ${names.join(" ")}`, ...settings.map(([name, value]) => `  ${name} ${value}`), ""].join("\n");
}

/** For a shell, which runs the command. */
const shellWord = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

/** `%` begins a token of ssh's own. */
const withoutTokens = (text: string): string => text.replaceAll("%", "%%");
const quoted = (path: string): string => {
  const text = withoutTokens(path);
  return /[\s"']/.test(text) ? `"${text}"` : text;
};
