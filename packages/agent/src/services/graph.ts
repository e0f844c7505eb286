import { ClocheError } from "@cloche/protocol";

/** Answers the needs of a service; undefined if no service of that name is defined. */
export type NeedsOf = (name: string) => readonly string[] | undefined;

/**
 * Checks all direct and indirect needs of `name`. Throws `failed_precondition` (409) naming an undefined need, or the services of a cycle
 * in their order. Iterative, because a chain may contain all services.
 */
export function checkNeeds(name: string, needsOf: NeedsOf): void {
  const done = new Set<string>();
  const path: { name: string; rest: string[] }[] = [];
  const onPath = new Set<string>();
  const enter = (entered: string, neededBy: string): void => {
    const needs = needsOf(entered);
    if (needs === undefined) {
      throw new ClocheError(
        "failed_precondition",
        `service "${neededBy}" needs "${entered}", which is not defined; create it first`,
        { reason: "needs_unknown" },
      );
    }
    path.push({ name: entered, rest: [...needs] });
    onPath.add(entered);
  };
  enter(name, name);
  for (let at = path.at(-1); at !== undefined; at = path.at(-1)) {
    const need = at.rest.shift();
    if (need === undefined) {
      done.add(at.name);
      onPath.delete(at.name);
      path.pop();
    } else if (!done.has(need)) {
      if (onPath.has(need)) {
        const start = path.findIndex((step) => step.name === need);
        const cycle = [...path.slice(start).map((step) => step.name), need].map((step) => `"${step}"`);
        throw new ClocheError("failed_precondition", `the needs form a cycle: ${cycle.join(" needs ")}`, {
          reason: "needs_cycle",
        });
      }
      enter(need, at.name);
    }
  }
}

/** Sorts `names`: needs before their dependents, else by name. Unknown needs and cycles do not affect the order of the others. */
export function inDependencyOrder(names: readonly string[], needsOf: NeedsOf): string[] {
  const wanted = new Set(names);
  const seen = new Set<string>();
  const ordered: string[] = [];
  for (const first of [...wanted].sort()) {
    const stack: { name: string; left: boolean }[] = [{ name: first, left: false }];
    for (let at = stack.pop(); at !== undefined; at = stack.pop()) {
      if (at.left) {
        if (wanted.has(at.name)) ordered.push(at.name);
        continue;
      }
      if (seen.has(at.name)) continue;
      seen.add(at.name);
      stack.push({ name: at.name, left: true });
      const needs = [...(needsOf(at.name) ?? [])].sort().reverse();
      for (const name of needs) stack.push({ name, left: false });
    }
  }
  return ordered;
}
