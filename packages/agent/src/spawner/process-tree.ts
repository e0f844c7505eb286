import { readdirSync, readFileSync } from "node:fs";

/**
 * The processes of one exec: all below its launcher (native/guest/PROTOCOL.md), with pids in the agent's namespace. `guestPid` is the
 * guest's file server; its child is init, whose children are the launchers. Empty if the launcher has ended.
 */
export function treeOf(guestPid: number, execId: number, procPath = "/proc"): number[] {
  const children = new Map<number, { pid: number; name: string }[]>();
  for (const entry of readdirSync(procPath)) {
    if (!/^[0-9]+$/.test(entry)) continue;
    try {
      const stat = readFileSync(`${procPath}/${entry}/stat`, "latin1");
      const nameEnd = stat.lastIndexOf(")");
      const parent = Number(stat.slice(nameEnd + 4, stat.indexOf(" ", nameEnd + 4)));
      const child = { pid: Number(entry), name: stat.slice(stat.indexOf("(") + 1, nameEnd) };
      const known = children.get(parent);
      if (known === undefined) children.set(parent, [child]);
      else known.push(child);
    } catch {
      // The process ended meanwhile.
    }
  }
  const below = (pid: number): { pid: number; name: string }[] => children.get(pid) ?? [];
  const launcher = `cloche-${execId.toString(16).padStart(8, "0")}`;
  const found = below(guestPid)
    .flatMap(({ pid }) => below(pid))
    .filter(({ name }) => name === launcher)
    .flatMap(({ pid }) => below(pid));
  for (let at = 0; at < found.length; at += 1) found.push(...below(found[at]?.pid ?? 0));
  return found.map(({ pid }) => pid);
}
