// The alert rules and the dashboard of deploy/monitoring name only metrics and labels that there are. docs/operations/watch.md lists these;
// tests/e2e/operations.test.ts compares the list with what a service prints.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { documentedMetrics } from "./metric-table.ts";
import { repositoryRoot, sourceFiles } from "./source-tree.ts";

interface Rule {
  alert: string;
  expr: string;
  for?: string;
  labels: { severity: string };
  annotations: { summary: string; description: string };
}
interface Panel {
  id: number;
  title: string;
  type: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: { expr: string; legendFormat: string }[];
}

const read = (name: string): string => readFileSync(join(repositoryRoot, "deploy/monitoring", name), "utf8");
const rules = (parse(read("alerts.yaml")) as { groups: { name: string; rules: Rule[] }[] }).groups.flatMap(
  (group) => group.rules,
);
const dashboard = JSON.parse(read("dashboard.json")) as { panels: Panel[] };
const documented = documentedMetrics();
/** Kinds by name, as the code registers them. */
const registered = new Map(
  sourceFiles([".ts"])
    .filter(({ path }) => path.startsWith("packages/") && !path.endsWith(".test.ts"))
    .flatMap(({ text }) =>
      [...text.matchAll(/metrics\.(counter|histogram|gauge)\(\s*"([a-z_]+)"/g)].map(
        ([, kind = "", name = ""]) => [name, kind] as const,
      ),
    ),
);

const functions = new Set(
  "sum avg max rate increase changes min_over_time histogram_quantile time by ignoring and".split(" "),
);
/** What Prometheus itself adds to each series. */
const targetLabels = ["job", "instance"];

/** What is wrong with an expression; the labels that its series can have. */
function review(expression: string): { problems: string[]; labels: Set<string> } {
  const problems: string[] = [];
  const labels = new Set(targetLabels);
  let rest = expression.replaceAll("$__rate_interval", "5m").replaceAll("$instance", "all");
  rest = rest.replace(/\b([a-z]\w*)\{([^}]*)\}(\[\w+\])?/g, (_all, name: string, selector: string, range) => {
    const base = name.replace(/_(bucket|count|sum)$/, "");
    const kind = registered.get(name) ?? registered.get(base);
    const known = name === "up" ? [] : documented.get(registered.has(name) ? name : base);
    if (known === undefined || (name !== "up" && kind === undefined)) problems.push(`no metric ${name}`);
    if ((kind === "histogram") === registered.has(name) && name !== "up")
      problems.push(`${name} is a ${kind}`);
    if (
      /_(total|bucket|count|sum)$/.test(name) !== (range !== undefined) &&
      !/_over_time|changes/.test(expression)
    )
      problems.push(`${name} needs a range if it counts, and only then`);
    for (const matcher of selector.split(/, ?/)) {
      const [, label = "", value] = /^([a-z_]+)=~?"([^"]*)"$/.exec(matcher) ?? [];
      if (value === undefined || ![...targetLabels, ...(known ?? [])].includes(label))
        problems.push(`${name}: no matcher ${matcher}`);
    }
    if (!selector.includes('job="cloche"')) problems.push(`${name} of any job`);
    for (const label of [...(known ?? []), ...(kind === "histogram" ? ["le"] : [])]) labels.add(label);
    return "1";
  });
  let grouped: string[] | undefined;
  rest = rest.replace(/\b(by|ignoring) \(([^)]*)\)/g, (_all, word: string, list: string) => {
    const names = list.split(", ");
    for (const name of names) if (!labels.has(name)) problems.push(`no label ${name} to group by`);
    if (word === "by") grouped = names;
    return "";
  });
  for (const [word] of rest.matchAll(/[a-z_]+/g)) if (!functions.has(word)) problems.push(`what is ${word}?`);
  for (let inner = ""; inner !== rest; ) [inner, rest] = [rest, rest.replaceAll(/\([^()]*\)/g, "1")];
  if (/[()[\]{}"]/.test(rest)) problems.push("brackets do not match");
  return { problems, labels: grouped === undefined ? labels : new Set(grouped) };
}

describe("metrics", () => {
  test("are listed in docs/operations/watch.md, all of them and no others", () => {
    expect([...documented.keys()].sort()).toEqual([...registered.keys()].sort());
  });
});

describe("alert rules", () => {
  test.each(rules)("$alert", ({ expr, for: wait, labels, annotations }) => {
    const { problems, labels: known } = review(expr);
    expect(problems).toEqual([]);
    expect(wait ?? "0s").toMatch(/^\d+[smh]$/);
    expect(["warning", "critical"]).toContain(labels.severity);
    const shown = `${annotations.summary} ${annotations.description}`;
    for (const [, label] of shown.matchAll(/\$labels\.(\w+)/g)) expect(known).toContain(label);
    expect(shown.replaceAll(/\{\{ \$(labels\.\w+|value)( \| humanize\w*)? \}\}/g, "")).not.toMatch(/[{}$]/);
    for (const [, page = ""] of shown.matchAll(/\((docs\/[a-z]+\.md)/g))
      for (const [, heading = ""] of shown.matchAll(/, "([^"]+)"\)/g))
        expect(readFileSync(join(repositoryRoot, page), "utf8")).toContain(`# ${heading}\n`);
  });

  test("have names of their own", () => {
    const names = rules.map(({ alert }) => alert);
    expect(new Set(names).size).toBe(names.length);
  });
});

describe("the dashboard", () => {
  test.each(
    dashboard.panels.flatMap(({ title, targets }) => (targets ?? []).map((one) => ({ title, ...one }))),
  )("$title: $legendFormat", ({ expr, legendFormat }) => {
    const { problems, labels } = review(expr);
    expect(problems).toEqual([]);
    for (const [, label] of legendFormat.matchAll(/\{\{(\w+)\}\}/g)) expect(labels).toContain(label);
  });

  test("shows every metric, in panels that do not overlap", () => {
    const shown = dashboard.panels
      .flatMap(({ targets }) => targets ?? [])
      .map(({ expr }) => expr)
      .join("\n");
    expect([...registered.keys()].filter((name) => !shown.includes(name))).toEqual([]);
    const cells = dashboard.panels.flatMap(({ gridPos: { x, y, w, h } }) =>
      Array.from({ length: w * h }, (_cell, at) => `${x + (at % w)},${y + Math.floor(at / w)}`),
    );
    expect(new Set(cells).size).toBe(cells.length);
    expect(Math.max(...dashboard.panels.map(({ gridPos: { x, w } }) => x + w))).toBeLessThanOrEqual(24);
  });
});

test("an expression with a fault is found", () => {
  for (const expression of [
    'cloche_nothing{job="cloche"} > 1',
    'cloche_pool_bytes{job="cloche", sort="total"}',
    "cloche_pool_bytes > 1",
    'cloche_operation_seconds{job="cloche"}',
    'cloche_pool_bytes_count{job="cloche"}',
    'rate(cloche_edge_errors_total{job="cloche"})',
    'sum by (colour) (cloche_pool_bytes{job="cloche"})',
    'sum(cloche_pool_bytes{job="cloche"}',
    'summe(cloche_pool_bytes{job="cloche"})',
  ])
    expect(review(expression).problems, expression).not.toEqual([]);
});
