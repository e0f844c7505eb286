// What is found out once, at start, of the runsc that units are made with and of the kernel under it.
import type { Log } from "@cloche/base";
import { run } from "../../sys/run.ts";
import { inHugePages } from "./huge-pages.ts";
import { sentryBuildOf } from "./sentry-build.ts";
import type { UnitEnvironment } from "./unit.ts";

/** In what `runsc --version` says. Another one's calls may differ: it restores by its own command. */
const RUNSC_THAT_KEEPER_RESTORES = "20240729";

type Known = Pick<UnitEnvironment, "runsc" | "hideNetSysctl" | "keeperRestores" | "sentryBuild">;

/** `programDir`: where its copy in huge pages is kept. Throws when it does not even say its version. */
export async function knownOf(runsc: string, programDir: string, log: Log): Promise<Known> {
  // See keeper.c: kernels that show this file in every network namespace need the work-around.
  const hideNetSysctl = await run(["unshare", "-n", "test", "-e", "/proc/sys/net/core/rmem_default"]).then(
    () => true,
    () => false,
  );
  const { stdout: version } = await run([runsc, "--version"]);
  return {
    runsc: await inHugePages(runsc, programDir, log),
    hideNetSysctl,
    keeperRestores: version.includes(RUNSC_THAT_KEEPER_RESTORES),
    sentryBuild: sentryBuildOf(runsc),
  };
}
