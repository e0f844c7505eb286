// `npm test -- --changed [base]`: the parts that the changed files can break. A file that no pattern names asks for all of them.
import { execFileSync } from "node:child_process";

const engine = /^packages\/(base|protocol|host|agent)\/|^native\//;
const servers = /^packages\/(?!sdk|cli)|^native\/|^scripts\//;

/** Each part by what it tests; its own tests and fixtures come with it. */
const reach: Readonly<Record<string, RegExp>> = {
  check: /./,
  unit: /^packages\/|^bench\/|^spec\/|\.md$|^tests\/(repository|conformance|fixtures|runner)\//,
  contracts: engine,
  deploy: /^deploy\/|^packages\/host\/src\/sys\//,
  guest: /^native\/guest\/|^packages\/(agent\/src\/(exec|files|processes|spawner)|protocol)\//,
  host: /^packages\/(base|host)\/|^native\//,
  e2e: /^packages\/|^native\/|^spec\//,
  service: /^packages\/|^native\/|^scripts\/|^README\.md$|^docs\/tour/,
  clients:
    /^(packages|spec|scripts|clients|adapters)\/|^docs\/(adapters|clients|e2b|examples|mcp|python|typescript)/,
  vm: /^packages\/(agent|host\/src\/(agent-calls|artifacts|drivers|operations))\/|^native\/(guest|vm)\//,
  oci: /^packages\/agent\/src\/(containers|images|services)\//,
  faults: /^packages\/(base|gateway|host)\/|^native\/keeper\//,
  cluster: /^packages\/(?!sdk|cli|mcp|e2b)|^native\/|^scripts\/|^tests\/lab\//,
  upgrade: servers,
  fuzz: /^packages\/(agent|edge|gateway|protocol)\/|^native\/guest\//,
};
/** What every part stands on. */
const everything = /^(package(-lock)?\.json|vitest\.config\.ts|tsconfig\.json)$|^tests\/(main\.ts|runner\/)/;
const shared = /^tests\/(fixtures|conformance)\//;
const document = /\.(md|svg)$|^docs\/|^\.github\//;

/** Names of the parts that `files` (paths from the root) can break, out of `names`. */
export function partsTouchedBy(files: readonly string[], names: readonly string[]): string[] {
  if (files.length === 0) return [];
  if (files.some((file) => everything.test(file))) return [...names];
  return names.filter((name) =>
    files.some((file) => {
      if (reach[name]?.test(file) || file.startsWith(`tests/${name}/`)) return true;
      if (shared.test(file)) return name !== "guest" && name !== "fuzz";
      return !isNamed(file) && !document.test(file);
    }),
  );
}

const isNamed = (file: string): boolean =>
  file.startsWith("tests/") || Object.entries(reach).some(([name, of]) => name !== "check" && of.test(file));

/** Files that differ from `base` (default: the upstream branch, or where there is none, main), those not committed too. */
export function changedFiles(root: string, base?: string): string[] {
  const git = (...words: string[]): string[] =>
    execFileSync("git", words, { cwd: root, encoding: "utf8" }).split("\n").filter(Boolean);
  const from = base ?? upstream(git);
  const [fork = from] = git("merge-base", from, "HEAD");
  return [...git("diff", "--name-only", fork), ...git("ls-files", "--others", "--exclude-standard")];
}

function upstream(git: (...words: string[]) => string[]): string {
  try {
    return git("rev-parse", "--abbrev-ref", "@{upstream}")[0] ?? "main";
  } catch {
    return "main";
  }
}
