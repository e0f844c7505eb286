/** `doctor`: prints what a start needs, whether it is there, and what to do. */
import { type Config, unknownSettings } from "@cloche/base";
import { connectionShares, connectionTableSize } from "@cloche/host/connection-shares";
import { pingControl } from "./control-socket.ts";
import { type Check, preflight } from "./preflight.ts";
import { checkResolution } from "./resolution.ts";

/** False: a start would fail. */
export async function doctor(config: Config, env: NodeJS.ProcessEnv, json: boolean): Promise<boolean> {
  const isRunning = await pingControl(config.home);
  const checks = [
    ...(await preflight(config, isRunning)),
    ...checkNames(env),
    await checkDomains(config),
    await checkConnections(),
    checkService(config, isRunning),
  ];
  const isGood = checks.every(({ state }) => state !== "failed");
  if (json) console.log(JSON.stringify({ ok: isGood, checks }, null, 2));
  else
    for (const { name, state, found, remedy } of checks) {
      console.log(`${state.padEnd(8)} ${name}: ${found}`);
      if (remedy !== "") console.log(`         remedy: ${remedy}`);
    }
  return isGood;
}

/** Near misses end every command (`config.ts`); what is left may be meant for another program. */
const checkNames = (env: NodeJS.ProcessEnv): Check[] =>
  unknownSettings(env).map((name) => ({
    name: "settings",
    state: "warning",
    found: `${name} is no setting of the service`,
    remedy: `unset ${name} if it was meant for the service; docs/operations.md has all settings`,
  }));

async function checkDomains({ baseDomain, edgeHost, edgePort }: Config): Promise<Check> {
  const { resolves, remedy } = await checkResolution(baseDomain, { host: edgeHost, port: edgePort });
  return {
    name: "names",
    state: resolves ? "ok" : "warning",
    found: `<id>.${baseDomain} ${resolves ? "resolves" : "does not resolve for ordinary programs here"}`,
    remedy: resolves ? "" : (remedy.split("Remedy: ").at(-1)?.replaceAll(/\n\s*/g, "; ") ?? remedy),
  };
}

/** From here on a team's share is what 10 sandboxes may have. */
const tableSizeWanted = 65_536;

export async function checkConnections(tableSize?: number): Promise<Check> {
  const size = tableSize ?? (await connectionTableSize());
  const { all, ofTeam } = connectionShares(size);
  const isSmall = size < tableSizeWanted;
  return {
    name: "connections",
    state: isSmall ? "warning" : "ok",
    found: `of ${size} that the kernel follows, all sandboxes may have ${all}, and those of one team ${ofTeam}`,
    remedy: isSmall ? `sysctl -w net.netfilter.nf_conntrack_max=${tableSizeWanted}, and start again` : "",
  };
}

const checkService = ({ home }: Config, isRunning: boolean): Check => ({
  name: "service",
  state: "ok",
  found: isRunning ? `a service of ${home} is running` : `no service of ${home} is running`,
  remedy: isRunning ? "" : "npm start -- --detach",
});
