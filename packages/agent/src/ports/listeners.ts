import { readdirSync, readFileSync, readlinkSync } from "node:fs";

/** Whether one of the processes `pids` listens for TCP connections on `port`. `pids` is called only if any socket listens there. */
export function listens(port: number, pids: () => Iterable<number>, procPath = "/proc"): boolean {
  const sockets = listeners(port, procPath);
  if (sockets.size === 0) return false;
  for (const pid of pids()) if (holdsOne(`${procPath}/${pid}/fd`, sockets)) return true;
  return false;
}

/** Links of /proc/<pid>/fd that are sockets listening on `port`. */
function listeners(port: number, procPath: string): Set<string> {
  const found = new Set<string>();
  for (const name of ["tcp", "tcp6"]) {
    let list: string;
    try {
      list = readFileSync(`${procPath}/net/${name}`, "latin1");
    } catch {
      continue; // a kernel without IPv6
    }
    for (const line of list.split("\n").slice(1)) {
      const fields = line.trim().split(/ +/);
      const [, local = "", , state] = fields;
      if (state !== listening || Number.parseInt(local.split(":")[1] ?? "", 16) !== port) continue;
      found.add(`socket:[${fields[inodeField]}]`);
    }
  }
  return found;
}

const listening = "0A";
const inodeField = 9;

function holdsOne(folder: string, sockets: ReadonlySet<string>): boolean {
  let descriptors: string[];
  try {
    descriptors = readdirSync(folder);
  } catch {
    return false; // the process ended
  }
  for (const descriptor of descriptors) {
    try {
      if (sockets.has(readlinkSync(`${folder}/${descriptor}`))) return true;
    } catch {
      // The descriptor was closed.
    }
  }
  return false;
}
