import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig, systemClock } from "@cloche/base";
import { openSqlite } from "@cloche/gateway";
import { afterEach, beforeEach, expect, it } from "vitest";
import { newSessionId } from "@cloche/protocol";
import { backUp, restoreBackup, restoredMarker } from "./backup.ts";
import { ensureInstallation, readInstallation } from "./setup/installation.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-backup-"));
});
afterEach(() => rm(folder, { recursive: true }));

const configOf = (home: string) => loadConfig({ CLOCHE_HOME: home }, () => undefined);

async function makeHome(name: string): Promise<string> {
  const home = join(folder, name);
  await mkdir(join(home, "keys", "signing"), { recursive: true, mode: 0o700 });
  await mkdir(join(home, "tls"));
  await writeFile(join(home, "keys", "api_key"), "secret", { mode: 0o600 });
  await writeFile(join(home, "keys", "signing", "k.pem"), "PEM", { mode: 0o600 });
  await writeFile(join(home, "tls", "ca.pem"), "CA");
  return home;
}

it("copies database, keys and authority while the database is written, and brings them back", async () => {
  const home = await makeHome("one");
  const database = await openSqlite(join(home, "cloche.db"), systemClock);
  let isDone = false;
  let written = 0;
  const writing = (async () => {
    while (!isDone) {
      await database.teams.insert({ id: `team-${written}`, name: "x", createdAtMs: written });
      written += 1;
      await new Promise((resolve) => setImmediate(resolve));
    }
  })();
  const known = (): number => written;
  await expect.poll(known).toBeGreaterThan(3);
  const before = written;
  const backup = join(folder, "backup");
  await backUp(configOf(home), backup);
  isDone = true;
  await writing;
  await database.close();
  expect((await stat(backup)).mode & 0o777).toBe(0o700);
  expect((await stat(join(backup, "cloche.db"))).mode & 0o777).toBe(0o600);

  const other = join(folder, "two");
  await restoreBackup(configOf(other), backup);
  expect((await stat(join(other, "keys", "api_key"))).mode & 0o777).toBe(0o600);
  expect(await readFile(join(other, "keys", "signing", "k.pem"), "utf8")).toBe("PEM");
  expect(await readFile(join(other, "tls", "ca.pem"), "utf8")).toBe("CA");
  expect(existsSync(restoredMarker(other))).toBe(true);
  expect((await readdir(other)).filter((name) => name.startsWith("."))).toEqual([]);
  const restored = await openSqlite(join(other, "cloche.db"), systemClock);
  const teams = (await restored.teams.all()).map(({ id }) => id);
  await restored.close();
  expect(teams.length).toBeGreaterThanOrEqual(before);
  expect(teams.length).toBeLessThanOrEqual(written);
});

it("refuses what it could spoil, and what is no whole backup", async () => {
  const home = await makeHome("one");
  await (await openSqlite(join(home, "cloche.db"), systemClock)).close();
  const backup = join(folder, "backup");
  await expect(backUp(configOf(join(folder, "none")), backup)).rejects.toThrow(/no service/);
  await backUp(configOf(home), backup);
  await expect(backUp(configOf(home), backup)).rejects.toThrow(/not empty/);
  await expect(restoreBackup(configOf(home), backup)).rejects.toThrow(/exists; move it away/);
  const fresh = configOf(join(folder, "two"));
  await writeFile(join(backup, "cloche.db"), "no database");
  await expect(restoreBackup(fresh, backup)).rejects.toThrow();
  await rm(join(backup, "backup.json"));
  await expect(restoreBackup(fresh, backup)).rejects.toThrow(/no whole backup/);
  expect(existsSync(join(folder, "two"))).toBe(false);
});

it("a restored home is the same installation, and its database is in use by nobody", async () => {
  const home = await makeHome("one");
  const installation = await ensureInstallation(home, randomBytes);
  const database = await openSqlite(join(home, "cloche.db"), systemClock);
  const owner = { home, host: "a", machine: "m", session: newSessionId(randomBytes), claimedAtMs: 1 };
  await database.ownership.replaceOwner(undefined, { ...owner, installation, seenAtMs: Date.now() });
  const backup = join(folder, "backup");
  await backUp(configOf(home), backup);
  await database.close();

  const other = join(folder, "two");
  await restoreBackup(configOf(other), backup);
  expect(await readInstallation(other)).toBe(installation);
  const restored = await openSqlite(join(other, "cloche.db"), systemClock);
  expect(await restored.ownership.owner()).toMatchObject({ installation, seenAtMs: 0 });
  await restored.close();

  // The usual way: database, keys and authority were moved away, the installation is the same.
  for (const name of ["cloche.db", "keys", "tls"]) await rm(join(home, name), { recursive: true });
  await restoreBackup(configOf(home), backup);
  expect(await readInstallation(home)).toBe(installation);
  const third = join(folder, "three");
  await ensureInstallation(third, randomBytes);
  await expect(restoreBackup(configOf(third), backup)).rejects.toThrow(
    /installation.json exists; move it away/,
  );
});
