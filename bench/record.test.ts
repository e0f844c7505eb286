import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { repositoryRoot } from "../tests/repository/source-tree.ts";
import { plotOf } from "./plot.ts";
import { type GroupRun, keyOf, record, recorded, withLastPrinted } from "./record.ts";
import { regressions } from "./regressions.ts";
import { type Cell, runCell } from "./runner.ts";

const cellOf = (more: Partial<Cell>): Cell => ({
  name: "a cell",
  samples: 40,
  warmups: 0,
  arms: [
    { name: "Cloche", run: async () => 2 },
    { name: "bare", run: async () => 1, samples: 10 },
  ],
  targets: [{ arm: "Cloche", against: "bare", atMost: 2.5 }],
  ...more,
});
const run = (cell: Cell, cpuMs?: () => number) =>
  runCell(cell, { seed: 1, say: () => undefined, ...(cpuMs ? { cpuMs } : {}) });

describe("a cell's run", () => {
  it("takes each arm's samples, judges by medians, and counts the CPU time of each", async () => {
    let spentMs = 0;
    const { arms, targets } = await run(
      cellOf({
        arms: [
          {
            name: "Cloche",
            run: async () => {
              spentMs += 5;
              return 2;
            },
          },
          { name: "bare", run: async () => 1, samples: 10 },
        ],
      }),
      () => spentMs,
    );
    expect(arms).toMatchObject([
      { arm: "Cloche", samples: 40, failures: 0, p50: 2, p99: 2, cpuMs: 5 },
      { arm: "bare", samples: 10, failures: 0, p50: 1, cpuMs: 0 },
    ]);
    expect(targets).toMatchObject([{ met: true, ratio: { value: 2, low: 2, high: 2 } }]);
  });

  it("counts a wrong answer as a failure, and an arm that failed once meets nothing", async () => {
    let round = 0;
    const failing = async (): Promise<number> => {
      round += 1;
      if (round === 7) throw new Error("a wrong answer");
      return 1;
    };
    const { arms, targets } = await run(
      cellOf({
        arms: [
          { name: "Cloche", run: failing },
          { name: "bare", run: async () => 1 },
        ],
      }),
    );
    expect(arms[0]).toMatchObject({ samples: 39, failures: 1, firstFailure: "a wrong answer" });
    expect(targets[0]?.met).toBe(false);
  });

  it("takes many samples from one run of an arm", async () => {
    const batch = { timesMs: [1, 2, 3], failures: ["late"] };
    const { arms } = await run(cellOf({ samples: 1, arms: [{ name: "Cloche", run: async () => batch }] }));
    expect(arms[0]).toMatchObject({ samples: 3, failures: 1, p50: 2 });
  });
});

describe("the record", () => {
  it("changes the last column of the rows that name a target, and nothing else", async () => {
    const results = [await run(cellOf({}))];
    const table = [
      "| promise | target | `npm run bench` | last printed |",
      "| one | ≤ 2.5× | group: `Cloche` / `bare` | pending |",
      "| one | ≤ 2.5× | group: `Cloche` / `other` | pending |",
      "| one | ≤ 2× | group: `Cloche` / `bare` | pending |",
      "text",
    ];
    expect(withLastPrinted(table.join("\n"), [{ group: "group", results }]).split("\n")).toEqual([
      table[0],
      "| one | ≤ 2.5× | group: `Cloche` / `bare` | 2.000× [2.000, 2.000], met |",
      ...table.slice(2),
    ]);
  });

  it("keeps a file of each group and draws the cells that name a plot", async () => {
    const root = `${await mkdtemp(join(tmpdir(), "cloche-record-"))}/`;
    writeFileSync(`${root}SPECIFICATION.md`, "no table\n");
    const results = [await run(cellOf({ plot: "drawn" })), await run(cellOf({ name: "not drawn" }))];
    record(root, [{ group: "group", results }], { at: "now", seed: 1, machine: "m" });
    expect(readdirSync(`${root}docs/plots`)).toEqual(["drawn.svg"]);
    expect([...recorded(root).keys()]).toEqual(["group: `Cloche` / `bare` ≤ 2.5"]);
    await rm(root, { recursive: true });
  });

  it("has a row for each recorded target, at most 25, all met", () => {
    const specification = readFileSync(`${repositoryRoot}SPECIFICATION.md`, "utf8");
    const rows = specification.split("\n").filter((line) => line.includes("` / `"));
    expect(rows.length).toBeLessThanOrEqual(25);
    expect(rows.filter((row) => !row.endsWith(", met |"))).toEqual([]);
    const folder = `${repositoryRoot}bench/results`;
    const runs = readdirSync(folder).map(
      (name) => JSON.parse(readFileSync(`${folder}/${name}`, "utf8")) as GroupRun,
    );
    expect(withLastPrinted(specification, runs)).toBe(specification);
    expect(recorded(repositoryRoot).size).toBe(rows.length);
  });

  it("finds what became slower by more than a fifth", async () => {
    const before = await run(cellOf({}));
    const known = new Map(before.targets.map((target) => [keyOf("group", target), target]));
    const after = async (ms: number): Promise<string[]> => {
      const arms = [
        { name: "Cloche", run: async () => ms },
        { name: "bare", run: async () => 1 },
      ];
      return regressions([{ group: "group", results: [await run(cellOf({ arms }))] }], known);
    };
    expect(await after(2.3)).toEqual([]);
    expect(await after(2.5)).toEqual(["group: `Cloche` / `bare` ≤ 2.5: 2.500, recorded 2.000"]);
  });

  it("draws an arm that took nothing at the left of the axis", async () => {
    const none = { name: "took nothing", run: async () => 0 };
    const some = { name: "took some", run: async () => 3 };
    for (const arms of [[none, some], [none]]) {
      const plot = plotOf(await run(cellOf({ arms, targets: [] })), { at: "now", machine: "m" });
      expect(plot).toContain("took nothing");
      expect(plot).not.toMatch(/NaN|Infinity/);
    }
  });

  it("draws each arm with its name, well-formed", async () => {
    const odd = [
      { name: 'Cloche <&"', run: async () => 20 },
      { name: "bare", run: async () => 0.3 },
    ];
    const plot = plotOf(await run(cellOf({ arms: odd, targets: [] })), { at: "now", machine: "m" });
    expect(plot).toContain("Cloche &lt;&amp;&quot;");
    expect(plot).not.toMatch(/NaN|undefined|Infinity/);
    expect(plot.match(/<text/g)?.length).toBe(plot.match(/<\/text>/g)?.length);
  });
});
