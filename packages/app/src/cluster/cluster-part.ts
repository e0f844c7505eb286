/** Opens the shared secrets and the authority of a cluster, for gateways and for operator's commands. */
import { type Clock, type Config, type Log, systemClock } from "@cloche/base";
import type { Database, Secret } from "@cloche/gateway";
import {
  Authority,
  type Credentials,
  type Identity,
  JoinTokens,
  KeptCredentials,
  type Members,
  requestCertificate,
} from "@cloche/trust";
import type { Stops } from "../parts/stops.ts";
import { readSecret, SharedSecrets } from "./shared-secrets.ts";

export interface ClusterPart {
  secrets: SharedSecrets;
  authority: Authority;
  tokens: JoinTokens;
}

/** Throws if the database's authority was sealed with a secret other than the file's. */
export async function openCluster(config: Config, database: Database): Promise<ClusterPart> {
  const secret = await readSecret(config.clusterSecretFile);
  const keep = database.secrets.keep.bind(database.secrets);
  const authority = await Authority.open(keep, secret, systemClock.nowMs());
  return {
    secrets: new SharedSecrets(database.secrets, secret),
    authority,
    tokens: new JoinTokens(secret, authority.certificate),
  };
}

/** Credentials of a gateway. It has the authority's key, so it issues its own certificate at each start, and renews it while it runs. */
export async function ownCredentials(
  authority: Authority,
  identity: Identity,
  log: Log,
  stops: Stops,
  clock: Clock = systemClock,
): Promise<KeptCredentials> {
  const { key, request } = await requestCertificate();
  const issue = (asked: string): Promise<string> => authority.issue(identity, asked, clock.nowMs());
  const first: Credentials = { ca: authority.certificate, key, cert: await issue(request) };
  const kept = new KeptCredentials({ first, renew: issue, clock, log: log.child({ part: "certificate" }) });
  kept.start();
  stops.add("certificate", () => kept.close());
  return kept;
}

const memberPrefix = "member/";

/** The owners of ids, in the table of secrets: for each id the SHA-256 of a key and the end of its validity. */
export function membersIn(
  secrets: Database["secrets"],
): Members & { forget(identity: Identity): Promise<boolean> } {
  const nameOf = ({ role, id }: Identity): string => `${memberPrefix}${role}/${id}`;
  const find = async (identity: Identity): Promise<Secret | undefined> =>
    (await secrets.list(nameOf(identity))).find(({ name }) => name === nameOf(identity));
  const isFor = (found: Secret, key: string, nowMs: number): boolean => {
    const [known, until] = found.value.split(" ");
    return known === key || Number(until) < nowMs;
  };
  return {
    async mayHave(identity, key, nowMs) {
      const found = await find(identity);
      return found === undefined || isFor(found, key, nowMs);
    },
    async take(identity, key, nowMs, untilMs) {
      const value = `${key} ${untilMs}`;
      if (await secrets.add(nameOf(identity), value)) return true;
      const found = await find(identity);
      return found !== undefined && isFor(found, key, nowMs) && (await secrets.replace(found, value));
    },
    /** False: the id had no owner. */
    async forget(identity) {
      if ((await find(identity)) === undefined) return false;
      await secrets.remove(nameOf(identity));
      return true;
    },
  };
}

const usedPrefix = "used-join-token/";

/** Marks a token as used until it expires. */
export async function useTokenOnce(database: Database, id: string, untilMs: number): Promise<boolean> {
  const nowMs = systemClock.nowMs();
  const isFirst = await database.secrets.add(usedPrefix + id, String(untilMs));
  for (const { name, value } of await database.secrets.list(usedPrefix))
    if (Number(value) < nowMs) await database.secrets.remove(name);
  return isFirst;
}
