/**
 * The API keys of a cluster's first team: one for its operator, one for E2B's clients. All gateways share them: sealed in the database, and
 * in files of each home.
 */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { randomBytes } from "node:crypto";
import { systemClock, writeDurably } from "@cloche/base";
import { type Gateway, newApiKeySecret } from "@cloche/gateway";
import { newE2bKey } from "../local-team.ts";
import type { SharedSecrets } from "./shared-secrets.ts";

const teamName = "default";
/** The gateway that makes the key may be killed meanwhile; after this time another gateway makes it. */
const patienceMs = 10_000;

interface SharedKey {
  /** In the database's secrets. */
  secret: string;
  /** The secret that the gateway which makes the key adds. */
  maker: string;
  /** In `<home>/keys`. */
  file: string;
  /** Name of the key in the team's list. */
  name: string;
  newSecret(): string;
}

const operatorKey: SharedKey = {
  secret: "operator-api-key",
  maker: "operator-team",
  file: "api_key",
  name: "cluster operator",
  newSecret: () => newApiKeySecret(randomBytes),
};
const e2bKey: SharedKey = {
  secret: "e2b-api-key",
  maker: "e2b-api-key-made",
  file: "e2b_api_key",
  name: "E2B clients",
  newSecret: newE2bKey,
};

/** Answers the operator's key, even a revoked one: status shows it, and calls with it are refused. */
export const ensureSharedApiKey = (home: string, gateway: Gateway, secrets: SharedSecrets): Promise<string> =>
  ensureKey(home, gateway, secrets, operatorKey);

/** The same for the key of E2B's clients. The operator's key must exist. */
export const ensureSharedE2bKey = (home: string, gateway: Gateway, secrets: SharedSecrets): Promise<string> =>
  ensureKey(home, gateway, secrets, e2bKey);

async function ensureKey(
  home: string,
  gateway: Gateway,
  secrets: SharedSecrets,
  key: SharedKey,
): Promise<string> {
  const secret = await secrets.keep(key.secret, key.newSecret());
  const untilMs = systemClock.monotonicMs() + patienceMs;
  let isMine = await secrets.add(key.maker, "made by the first");
  while ((await gateway.apiKeyState(secret)) === "unknown") {
    if (isMine || systemClock.monotonicMs() > untilMs) {
      const teams = await gateway.teams();
      const team = teams.find(({ name }) => name === teamName) ?? (await gateway.addTeam(teamName));
      await gateway.createApiKey(team.id, key.name, 0, secret);
      isMine = false;
    } else await systemClock.sleep(100);
  }
  await mkdir(join(home, "keys"), { recursive: true, mode: 0o700 });
  await writeDurably(join(home, "keys", key.file), `${secret}\n`, 0o600);
  return secret;
}
