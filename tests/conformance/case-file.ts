// Files of conformance cases, read and checked against spec/cases/case.schema.yaml before anything runs.
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { Ajv2020 } from "ajv/dist/2020.js";
import { parse } from "yaml";

export type Surface = "gateway" | "dataplane";
export type Capability = "other_team" | "containers";

export interface Expectation {
  status?: number | number[];
  headers?: Record<string, unknown>;
  json?: unknown;
  text?: unknown;
  size?: number;
  error?: string;
  says?: string | string[];
}
export interface Step {
  call: string;
  surface?: Surface;
  query?: Record<string, string | number | boolean>;
  headers?: Record<string, string>;
  json?: unknown;
  text?: string;
  base64?: string;
  bytes?: { fill: string; count: number; prefix?: string; suffix?: string };
  on?: string;
  auth?: string;
  path?: string;
  method?: string;
  until_ms?: number;
  copies?: number;
  pause_ms?: number;
  meanwhile?: boolean;
  capture?: Record<string, string>;
  expect: Expectation;
}
export type SandboxUse = "shared" | "each" | "none";
export interface Case {
  name: string;
  source?: string;
  needs?: Capability[];
  known_failure?: string;
  sandbox?: SandboxUse;
  create?: Record<string, unknown>;
  steps: Step[];
}
export interface CaseFile {
  /** Relative to the cases' folder: `dataplane/exec.yaml`. */
  path: string;
  surface: Surface;
  source: string;
  sandbox?: SandboxUse;
  create?: Record<string, unknown>;
  cases: Case[];
}

export const casesFolder = fileURLToPath(new URL("../../spec/cases", import.meta.url));

const validate = new Ajv2020({ strict: false, allErrors: true, allowUnionTypes: true }).compile(
  parse(readFileSync(join(casesFolder, "case.schema.yaml"), "utf8")) as object,
);

/** One file from its text. Throws an Error that lists everything wrong with it. */
export function parseCaseFile(path: string, text: string): CaseFile {
  const parsed: unknown = parse(text);
  if (!validate(parsed)) {
    const problems = (validate.errors ?? []).map(
      (error) => `${error.instancePath || "/"} ${error.message ?? ""}`,
    );
    throw new Error(`${path} is no file of cases:\n  ${problems.join("\n  ")}`);
  }
  const file = { ...(parsed as Omit<CaseFile, "path">), path };
  const names = file.cases.map((one) => one.name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw new Error(`${path} has two cases named ${JSON.stringify(twice)}`);
  return file;
}

/** All files of cases, sorted by path. Throws when one is not well-formed. */
export function loadCaseFiles(folder: string = casesFolder): CaseFile[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(".yaml") && entry.name !== "case.schema.yaml")
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
    .map((path) => parseCaseFile(relative(folder, path), readFileSync(path, "utf8")));
}
