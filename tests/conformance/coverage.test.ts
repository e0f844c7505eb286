// No method of the gateway and no route of the data plane without a case that succeeds and a refusal of strangers.
import { dataPlaneRoutes } from "@cloche/protocol";
import { describe, expect, test } from "vitest";
import { dataPlaneRefusals, examplePath, gatewayRefusals } from "./auth-refusals.ts";
import { type CaseFile, loadCaseFiles, parseCaseFile } from "./case-file.ts";
import { openApiPath } from "./contract-check.ts";
import { statusOf } from "./step.ts";
import { dataPlaneOperations, gatewayMethods, successes } from "./surface-map.ts";

const files = loadCaseFiles();
const shown = successes(files);

/** What no case shows to succeed. */
const uncovered = (all: readonly string[], covered: ReadonlySet<string>): string[] =>
  all.filter((one) => !covered.has(one));

describe("the cases", () => {
  test("are many, and each file names its section of the contract", () => {
    expect(files.flatMap((file) => file.cases).length).toBeGreaterThan(120);
    expect(files.map((file) => file.source).every((source) => source.length > 8)).toBe(true);
  });

  test("show every gateway method to succeed", () => {
    expect(gatewayMethods.length).toBeGreaterThanOrEqual(15);
    expect(
      uncovered(
        gatewayMethods.map(({ path }) => path),
        shown,
      ),
    ).toEqual([]);
  });

  test("show every data plane route to succeed", () => {
    expect(uncovered(dataPlaneOperations, shown)).toEqual([]);
  });

  test("would show a route that is forgotten", () => {
    const forgetful = files.map((file) => ({
      ...file,
      cases: file.cases.map((one) => ({
        ...one,
        steps: one.steps.filter((step) => !step.call.startsWith("GET /v1/files/stat")),
      })),
    }));
    expect(uncovered(dataPlaneOperations, successes(forgetful))).toEqual(["GET /v1/files/stat"]);
    const marked = files.map((file) => ({
      ...file,
      cases: file.cases.map((one) => ({ ...one, known_failure: "not there yet" })),
    }));
    expect(uncovered(dataPlaneOperations, successes(marked))).toHaveLength(dataPlaneRoutes.length);
  });

  test("name only error codes that exist", () => {
    const codes = files.flatMap((file) =>
      file.cases.flatMap((one) =>
        one.steps.map((step) => ({ surface: file.surface, code: step.expect.error })),
      ),
    );
    for (const { surface, code } of codes) if (code !== undefined) statusOf(surface, code);
    expect(codes.some(({ code }) => code !== undefined)).toBe(true);
  });

  test("use only what they captured before", () => {
    expect(files.flatMap(uncaptured)).toEqual([]);
    const text = [
      "surface: dataplane",
      "source: contract",
      "cases: [{ name: an offender, steps: [{ call: 'GET /${x}', expect: { status: 200 } }] }]",
    ].join("\n");
    expect(uncaptured(parseCaseFile("x.yaml", text))).toHaveLength(1);
  });
});

describe("the refusals of strangers", () => {
  test("reach the very route they are made for", () => {
    const reached = dataPlaneRoutes.map(
      ({ method, path }) => `${method} ${openApiPath(examplePath(path)) ?? ""}`,
    );
    expect(reached).toEqual(dataPlaneOperations);
  });

  test("are of every kind", () => {
    const claims = Buffer.from(JSON.stringify({ exp: 1, aud: "sbx-a", sandbox_id: "sbx-a" })).toString(
      "base64url",
    );
    const header = Buffer.from(JSON.stringify({ alg: "RS256", kid: "k" })).toString("base64url");
    const sandbox = { id: "sbx-a", domain: "a.localhost", token: `${header}.${claims}.signature` };
    const target = { gatewayUrl: "", apiKey: "key-secret", edgeHost: "", edgePort: 0, ca: "" };
    const names = dataPlaneRefusals(target, sandbox, { ...sandbox, token: "other" }, 0).map(
      ({ name }) => name,
    );
    expect(names).toEqual(
      expect.arrayContaining(["no token", "the API key", "alg none", "another sandbox's token"]),
    );
    expect(new Set(names).size).toBe(names.length);
    const headers = gatewayRefusals(target, sandbox).map(({ authorization }) => authorization);
    expect(headers).not.toContain("Bearer key-secret");
    expect(new Set(headers).size).toBe(headers.length);
  });
});

describe("the loader", () => {
  test.each([
    ["surface: nowhere\nsource: x\ncases: []", "/surface"],
    ["surface: gateway\nsource: x\ncases: [{name: a case without steps}]", "steps"],
    ["surface: gateway\nsource: x\ncases: [{name: a stray field, step: 1, steps: []}]", "additional"],
    [
      "surface: gateway\nsource: x\ncases: [{name: twice the same, steps: [{call: A, expect: {status: 200}}]}, {name: twice the same, steps: [{call: A, expect: {status: 200}}]}]",
      "two cases",
    ],
  ])("refuses a file that is not well-formed", (text, problem) => {
    expect(() => parseCaseFile("x.yaml", text)).toThrow(problem);
  });
});

/** `${name}`s that no step before has captured. */
function uncaptured(file: CaseFile): string[] {
  const given = ["case", "api_key", "key512", "sandbox", "domain", "base_domain", "token"];
  return file.cases.flatMap((one) => {
    const known = new Set(given);
    return one.steps.flatMap(({ capture, ...step }) => {
      const used = [...JSON.stringify(step).matchAll(/\$\{(\w+)\}/g)].map((match) => match[1] ?? "");
      const missing = used.filter((name) => !known.has(name));
      for (const name of Object.keys(capture ?? {})) known.add(name);
      return missing.map((name) => `${file.path}: ${one.name}: \${${name}}`);
    });
  });
}
