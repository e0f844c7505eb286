/**
 * The team of this installation and its first API key, made once. The key lies in `<home>/keys/api_key` (0600), since
 * `status` and the command line show it; the database keeps only its hash. So the two can part, and are brought together at
 * each start: a database that has never had the key (it was replaced, or restored from before) gets it; a key that was
 * revoked, or is none, gives way to a new one.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Log, writeDurably } from "@cloche/base";
import { type Gateway, isApiKeySecret } from "@cloche/gateway";

const teamName = "default";
const keyName = "local operator";

export async function ensureLocalTeam(home: string, gateway: Gateway, log: Log): Promise<{ apiKey: string }> {
  const file = join(home, "keys", "api_key");
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  const kept = isApiKeySecret(text.trim()) ? text.trim() : undefined;
  const state = kept === undefined ? "refused" : await gateway.apiKeyState(kept);
  if (kept !== undefined && state === "good") return { apiKey: kept };
  const teams = await gateway.teams();
  const team = teams.find((one) => one.name === teamName) ?? (await gateway.addTeam(teamName));
  if (kept !== undefined && state === "unknown") {
    await gateway.createApiKey(team.id, keyName, 0, kept);
    log.warn({ file, team: team.name }, "the database did not know this home's API key, and does now");
    return { apiKey: kept };
  }
  const { secret } = await gateway.createApiKey(team.id, keyName);
  if (text !== "") log.warn({ file }, "this home's API key was revoked, or is none; there is a new one");
  await mkdir(join(home, "keys"), { recursive: true, mode: 0o700 });
  await writeDurably(file, `${secret}\n`, 0o600);
  return { apiKey: secret };
}
