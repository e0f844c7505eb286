import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { clientSettings, hostEntry } from "./client-settings.ts";
import { keepKeys, makeKeys, readServerKeys } from "./keys.ts";

let folder: string;
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), "cloche ssh's 100%"))));
afterEach(() => rmSync(folder, { recursive: true }));

/** What OpenSSH's client makes of an entry. */
function understood(entry: string, host: string): Map<string, string> {
  const file = join(folder, "config");
  writeFileSync(file, entry, { mode: 0o600 });
  const lines = execFileSync("ssh", ["-G", "-T", "-F", file, host]).toString().trim().split("\n");
  return new Map(lines.map((line) => [line.split(" ")[0] ?? "", line.slice(line.indexOf(" ") + 1)]));
}

test("an entry says to ssh what it means, whatever the folder is called", () => {
  const command = ["env", "CLOCHE_HOME=/a b", "/usr/bin/node", "it's", "ssh-proxy", "sbx-1", folder];
  const entry = hostEntry(["demo.cloche", "sbx-1"], clientSettings(folder, command));
  for (const host of ["demo.cloche", "sbx-1"]) {
    const settings = understood(entry, host);
    expect(settings.get("hostkeyalias")).toBe("cloche");
    expect(settings.get("identitiesonly")).toBe("yes");
    expect(settings.get("stricthostkeychecking")).toBe("true");
    expect(settings.get("updatehostkeys")).toBe("false");
    expect(settings.get("identityfile")).toBe(`${folder.replaceAll("%", "%%")}/key`);
    // As its shell would split it, once ssh has made one `%` of two.
    const line = (settings.get("proxycommand") ?? "").replaceAll("%%", "%");
    const words = execFileSync("sh", ["-c", `printf '%s\\n' ${line}`])
      .toString()
      .trim()
      .split("\n");
    expect(words).toEqual(command);
  }
  expect(understood(entry, "other.example").get("proxycommand")).toBeUndefined();
});

test("keys are made once, for their owner alone, and known by the name of the alias", async () => {
  const keys = join(folder, "keys");
  await Promise.all([keepKeys(keys), keepKeys(keys)]);
  const first = await readServerKeys(keys);
  await keepKeys(keys);
  expect(await readServerKeys(keys)).toEqual(first);
  expect(first.clientKey).toMatch(/^ssh-ed25519 \S+ cloche$/);
  expect(statSync(keys).mode & 0o777).toBe(0o700);
  expect(statSync(join(keys, "key")).mode & 0o777).toBe(0o600);
  const hostKey = readFileSync(join(keys, "host_key.pub"), "utf8");
  expect(readFileSync(join(keys, "known_hosts"), "utf8")).toBe(`cloche ${hostKey}`);
  const others = mkdtempSync(join(folder, "others-"));
  await makeKeys(others);
  expect((await readServerKeys(others)).clientKey).not.toBe(first.clientKey);
  await expect(readServerKeys(join(folder, "none"))).rejects.toThrow(/run cloche ssh-config again/);
  rmSync(join(others, "host_key"));
  await expect(keepKeys(others)).rejects.toThrow(/not whole; remove the folder/);
});
