/** Reads what test runners write: vitest's JSON, JUnit's XML. */
import { readFileSync } from "node:fs";
import { relative } from "node:path";
import type { CaseResult } from "./suite.ts";

interface VitestFile {
  name: string;
  status: string;
  message: string;
  assertionResults: {
    ancestorTitles: string[];
    title: string;
    status: string;
    failureMessages: string[] | null;
  }[];
}

/** `--reporter=json`. A file that could not be loaded is one failed case. */
export function vitestResults(file: string, folder: string): CaseResult[] {
  const { testResults } = JSON.parse(readFileSync(file, "utf8")) as { testResults: VitestFile[] };
  return testResults.flatMap(({ name, status, message, assertionResults }) => {
    const path = relative(folder, name);
    if (assertionResults.length === 0 && status === "failed")
      return [{ id: path, result: "failed" as const, message }];
    return assertionResults.map((one) => ({
      id: [path, ...one.ancestorTitles, one.title].join(" > "),
      result: one.status === "passed" || one.status === "failed" ? one.status : ("skipped" as const),
      message: one.failureMessages?.[0] ?? "",
    }));
  });
}

/** `--junitxml`, as pytest writes it. */
export function junitResults(file: string): CaseResult[] {
  const xml = readFileSync(file, "utf8");
  return [...xml.matchAll(/<testcase\b([^>]*?)(?:\/>|>([^]*?)<\/testcase>)/g)].map(
    ([, attributes = "", inside = ""]) => {
      const bad = /<(?:failure|error)\b[^>]*?message="([^"]*)"/.exec(inside);
      const result = bad !== null ? "failed" : /<skipped\b/.test(inside) ? "skipped" : "passed";
      const id = [attribute(attributes, "classname"), attribute(attributes, "name")].join(" > ");
      return { id, result, message: plain(bad?.[1] ?? "") };
    },
  );
}

const attribute = (attributes: string, name: string): string =>
  plain(new RegExp(`(?:^| )${name}="([^"]*)"`).exec(attributes)?.[1] ?? "");

const entities: Record<string, string> = { lt: "<", gt: ">", quot: '"', apos: "'", amp: "&", "#10": "\n" };
const plain = (text: string): string =>
  text.replace(/&(#?\w+);/g, (whole, name: string) => entities[name] ?? whole);
