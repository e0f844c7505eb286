/**
 * The team of this installation and its first API key, made once. The key lies in `<home>/keys/api_key` (0600), since
 * `status` and the command line show it; the database keeps only its hash.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { writeDurably } from "@cloche/base";
import type { Gateway } from "@cloche/gateway";

const teamName = "default";
const keyName = "local operator";

export async function ensureLocalTeam(home: string, gateway: Gateway): Promise<{ apiKey: string }> {
  const file = join(home, "keys", "api_key");
  const existing = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return undefined;
    throw error;
  });
  if (existing !== undefined) return { apiKey: existing.trim() };
  const teams = await gateway.teams();
  const team = teams.find((one) => one.name === teamName) ?? (await gateway.addTeam(teamName));
  const { secret } = await gateway.createApiKey(team.id, keyName);
  await mkdir(join(home, "keys"), { recursive: true, mode: 0o700 });
  await writeDurably(file, `${secret}\n`, 0o600);
  return { apiKey: secret };
}
