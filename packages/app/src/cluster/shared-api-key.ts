/** The first API key of a cluster, for its operator. All gateways share it: sealed in the database, and in a file of each home. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { randomBytes } from "node:crypto";
import { systemClock, writeDurably } from "@cloche/base";
import { type Gateway, newApiKeySecret } from "@cloche/gateway";
import type { SharedSecrets } from "./shared-secrets.ts";

const teamName = "default";
/** The gateway that makes the team may be killed meanwhile; after this time another gateway makes it. */
const patienceMs = 10_000;

/** Answers the key, even a revoked one: status shows it, and calls with it are refused. */
export async function ensureSharedApiKey(
  home: string,
  gateway: Gateway,
  secrets: SharedSecrets,
): Promise<string> {
  const secret = await secrets.keep("operator-api-key", newApiKeySecret(randomBytes));
  const untilMs = systemClock.monotonicMs() + patienceMs;
  let isMine = await secrets.add("operator-team", "made by the first");
  while ((await gateway.apiKeyState(secret)) === "unknown") {
    if (isMine || systemClock.monotonicMs() > untilMs) {
      const teams = await gateway.teams();
      const team = teams.find(({ name }) => name === teamName) ?? (await gateway.addTeam(teamName));
      await gateway.createApiKey(team.id, "cluster operator", 0, secret);
      isMine = false;
    } else await systemClock.sleep(100);
  }
  await mkdir(join(home, "keys"), { recursive: true, mode: 0o700 });
  await writeDurably(join(home, "keys", "api_key"), `${secret}\n`, 0o600);
  return secret;
}
