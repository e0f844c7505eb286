/**
 * The team of this installation and its first API keys, made once. A key is in a file below `<home>/keys` (0600), because `status`
 * and the command line show it; the database has only its hash. File and database can therefore differ, and each start aligns them:
 * a database without the key (replaced, or restored from an older backup) gets it; a revoked or malformed key is replaced by a new one.
 */
import { randomBytes } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Log, writeDurably } from "@cloche/base";
import { type Gateway, isApiKeySecret } from "@cloche/gateway";

const teamName = "default";

/** A key with its file and its name. */
interface LocalKey {
  file: string;
  /** Name of the key in the team's list. */
  name: string;
  isSecret(text: string): boolean;
  /** Makes the secret. Undefined: the gateway makes one in its own format. */
  newSecret?(): string;
}

const operatorKey: LocalKey = { file: "api_key", name: "local operator", isSecret: isApiKeySecret };
/** The secret of a key in the format that E2B's clients demand. */
export function newE2bKey(): string {
  return `e2b_${randomBytes(20).toString("hex")}`;
}

const e2bKey: LocalKey = {
  file: "e2b_api_key",
  name: "E2B clients",
  isSecret: (text) => /^e2b_[0-9a-f]{40}$/.test(text),
  newSecret: newE2bKey,
};

export async function ensureLocalTeam(home: string, gateway: Gateway, log: Log): Promise<{ apiKey: string }> {
  return { apiKey: await ensureKey(home, gateway, log, operatorKey) };
}

/** The team's key for the E2B-compatible endpoint. */
export const ensureE2bKey = (home: string, gateway: Gateway, log: Log): Promise<string> =>
  ensureKey(home, gateway, log, e2bKey);

async function ensureKey(home: string, gateway: Gateway, log: Log, key: LocalKey): Promise<string> {
  const file = join(home, "keys", key.file);
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  const kept = key.isSecret(text.trim()) ? text.trim() : undefined;
  const state = kept === undefined ? "refused" : await gateway.apiKeyState(kept);
  if (kept !== undefined && state === "good") return kept;
  const teams = await gateway.teams();
  const team = teams.find((one) => one.name === teamName) ?? (await gateway.addTeam(teamName));
  if (kept !== undefined && state === "unknown") {
    await gateway.createApiKey(team.id, key.name, 0, kept);
    log.warn({ file, team: team.name }, "the database did not know this home's API key, and does now");
    return kept;
  }
  const { secret } = await gateway.createApiKey(team.id, key.name, 0, key.newSecret?.());
  if (text !== "") log.warn({ file }, "this home's API key was revoked, or is none; there is a new one");
  await mkdir(join(home, "keys"), { recursive: true, mode: 0o700 });
  await writeDurably(file, `${secret}\n`, 0o600);
  return secret;
}
