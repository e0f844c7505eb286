import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkNeeds, inDependencyOrder } from "./graph.ts";

/** What can be reached from `name`, by the plainest of means. */
function reachable(graph: ReadonlyMap<string, readonly string[]>, name: string): Set<string> {
  const seen = new Set<string>();
  for (const todo = [name]; todo.length > 0; ) {
    const next = todo.pop() ?? "";
    for (const need of graph.get(next) ?? []) {
      if (!seen.has(need)) {
        seen.add(need);
        todo.push(need);
      }
    }
  }
  return seen;
}

describe("checkNeeds", () => {
  it("refuses just the graphs with a cycle or an unknown need within reach", () => {
    const names = ["a", "b", "c", "d", "e", "f"];
    const needs = fc.subarray([...names, "ghost"]);
    fc.assert(
      fc.property(fc.dictionary(fc.constantFrom(...names), needs), (drawn) => {
        const graph = new Map(Object.entries(drawn));
        for (const name of graph.keys()) {
          const within = [name, ...reachable(graph, name)];
          const unknown = within.some((one) => !graph.has(one));
          const cyclic = within.some((one) => reachable(graph, one).has(one));
          const check = (): void => checkNeeds(name, (one) => graph.get(one));
          if (!unknown && !cyclic) check();
          else expect(check).toThrow(expect.objectContaining({ code: "failed_precondition" }));
        }
      }),
      { numRuns: 1_000 },
    );
  });

  it("names the unknown need and the cycle", () => {
    const graph = new Map([
      ["web", ["db", "cache"]],
      ["db", ["web"]],
      ["cache", ["nothing"]],
      ["self", ["self"]],
    ]);
    const check = (name: string) => (): void => checkNeeds(name, (one) => graph.get(one));
    expect(check("web")).toThrow('"web" needs "db" needs "web"');
    expect(check("self")).toThrow('"self" needs "self"');
    expect(check("cache")).toThrow('service "cache" needs "nothing"');
  });

  it("takes a chain as long as it likes", () => {
    checkNeeds("0", (name) => (name === "20000" ? [] : [String(Number(name) + 1)]));
  });
});

describe("inDependencyOrder", () => {
  it("puts every need before who needs it, keeps just the names it was given, and ends on cycles", () => {
    const names = ["a", "b", "c", "d", "e"];
    const drawn = fc.dictionary(fc.constantFrom(...names), fc.subarray(names));
    fc.assert(
      fc.property(drawn, fc.subarray(names), (needs, chosen) => {
        const graph = new Map(Object.entries(needs));
        const ordered = inDependencyOrder(chosen, (name) => graph.get(name));
        expect([...ordered].sort()).toEqual([...chosen].sort());
        const cyclic = names.some((name) => reachable(graph, name).has(name));
        if (cyclic) return;
        for (const [at, name] of ordered.entries()) {
          for (const later of ordered.slice(at + 1)) expect(reachable(graph, name).has(later)).toBe(false);
        }
      }),
    );
  });
});
