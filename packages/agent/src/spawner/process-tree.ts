import { readdirSync, readFileSync } from "node:fs";

/**
 * The processes of one exec: everything below its launcher (native/guest/PROTOCOL.md), as the agent counts them. `guestPid` is the
 * guest's file server, whose child is init, whose children are the launchers. Empty where the launcher has ended.
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
      // It ended between the two looks.
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
