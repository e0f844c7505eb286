import { readFileSync } from "node:fs";

/**
 * How many TCP connections were ever opened from inside, where none of those to the outside is open; undefined where one is,
 * or where it cannot be told. gVisor cuts connections to the outside as it saves memory, and that can tear what polls them
 * (host/native/keeper.c). While the number stays what it is, nothing was opened since. The agent's own connections, those
 * to its port, do not count: it mends what polls them (poller.ts).
 */
export function opensWhileQuiet(agentPort: number, netPath = "/proc/net"): number | undefined {
  try {
    // First the number: what is opened while the lists are read makes it stale.
    const opens = activeOpens(readFileSync(`${netPath}/snmp`, "latin1"));
    const lists = ["tcp", "tcp6"].map((name) => readFileSync(`${netPath}/${name}`, "latin1"));
    return lists.some((list) => hasOutside(list, agentPort)) ? undefined : opens;
  } catch {
    return undefined;
  }
}

/** Two lines begin with Tcp: the names of the figures, and the figures. */
function activeOpens(snmp: string): number | undefined {
  const [names, figures] = snmp
    .split("\n")
    .filter((line) => line.startsWith("Tcp:"))
    .map((line) => line.split(/ +/));
  const opens = Number(figures?.[names?.indexOf("ActiveOpens") ?? -1]);
  return Number.isSafeInteger(opens) ? opens : undefined;
}

const listening = "0A";
const closed = "07";

function hasOutside(list: string, agentPort: number): boolean {
  for (const line of list.split("\n").slice(1)) {
    const [, local = "", remote = "", state] = line.trim().split(/ +/);
    if (state === undefined || state === listening || state === closed) continue;
    if (Number.parseInt(local.split(":")[1] ?? "", 16) === agentPort) continue;
    if (!isLoopback(remote.split(":")[0] ?? "")) return true;
  }
  return false;
}

/** Hex as the kernel prints it: words of four bytes, each with its bytes reversed. */
const isLoopback = (address: string): boolean =>
  /^(?:0{16}FFFF0000)?[0-9A-F]{6}7F$/i.test(address) || /^0{24}01000000$/.test(address);
