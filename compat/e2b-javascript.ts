/** E2B's JavaScript SDK: its own tests, by domain over TLS. */
import { join } from "node:path";
import { succeeded } from "../tests/fixtures/python-tools.ts";
import { vitestResults } from "./results.ts";
import type { CompatService } from "./service.ts";
import type { CaseResult, Suite } from "./suite.ts";

const PNPM = "pnpm@10.33.0";

export const e2bJavascript: Suite = {
  name: "e2b-javascript",
  repository: "e2b-dev/E2B",
  pin: "b8029973aa7da5f741f7bb1a9f833b38a0885438",
  part: "js-sdk: all but templates and browsers",
  out: {
    "needs the internet": [
      "internet access enabled",
      "internet access default",
      "allow specific IP with deny all traffic",
      "allow takes precedence over deny",
      "denies a previously reachable IP after update",
      "omitting fields replaces all egress rules",
    ],
    "answered by the edge with statuses of its own: 503 where the sandbox does not run, 401 without a token":
      ["ping server in non-running sandbox", "sandbox requires traffic access token"],
    "a policy lists what may be reached, not single addresses that may not": ["deny specific IP address"],
    "nothing looks into traffic or changes it": [
      "injected header is reflected by the httpbin sidecar",
      "verify maskRequestHost modifies Host header correctly",
    ],
    "a resume goes on with the memory that was saved": ["filesystem-only auto-pause reboots on connect"],
  },
  async install(folder) {
    const pnpm = async (...words: string[]): Promise<string> =>
      await succeeded("npx", ["-y", PNPM, ...words], { cwd: folder });
    await pnpm("install", "--frozen-lockfile", "--ignore-scripts", "--filter", "e2b");
    // A test of theirs looks into their bundle.
    await pnpm("--filter", "e2b", "run", "build");
  },
  run: (folder, service) => tests(folder, service, []),
  again(folder, service, cases) {
    const files = new Set(cases.map(({ id }) => id.split(" > ", 1)[0] ?? ""));
    // Its full name: of the groups and of the case, with spaces between.
    const names = cases.map(({ id }) =>
      id
        .split(" > ")
        .slice(1)
        .join(" ")
        .replaceAll(/[^\w ]/g, "\\$&"),
    );
    return tests(folder, service, [...files, "-t", `^(${names.join("|")})$`]);
  },
};

async function tests(
  folder: string,
  { run, e2bByDomain }: CompatService,
  some: readonly string[],
): Promise<CaseResult[]> {
  const sdk = join(folder, "packages/js-sdk");
  const report = join(folder, "report.json");
  const projects = ["--project", "unit", "--project", "connectionConfig"];
  const reporters = ["--reporter=json", "--reporter=default", `--outputFile.json=${report}`];
  const vitest = join(sdk, "node_modules/vitest/vitest.mjs");
  await run(process.execPath, [vitest, "run", ...projects, ...reporters, ...some], sdk, e2bByDomain);
  return vitestResults(report, sdk);
}
