/** Upstream's packages as ComputeSDK's suites need them: installed by their lock file, and those built that the suites import. */
import { succeeded } from "../tests/fixtures/python-tools.ts";

const PNPM = "pnpm@9.15.0";
const built = ["@computesdk/cmd", "daemond", "computesdk", "@computesdk/provider", "@computesdk/test-utils"];

export const computesdk = {
  repository: "computesdk/computesdk",
  pin: "afaf03b7ccf2b5b2fff611110d8b24c7df4cc8c5",
};

export async function buildPackages(folder: string): Promise<void> {
  const pnpm = async (...words: string[]): Promise<string> =>
    await succeeded("npx", ["-y", PNPM, ...words], { cwd: folder });
  await pnpm("install", "--frozen-lockfile", "--ignore-scripts", "--filter", "@computesdk/e2b...");
  for (const name of built) await pnpm("--filter", name, "run", "build");
}
