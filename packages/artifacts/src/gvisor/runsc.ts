/**
 * gVisor's runsc: the operator's own (CLOCHE_RUNSC), or the pinned version, built once from its Go module into the cache.
 */
import { join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { run } from "@cloche/base/run";
import { buildRunsc, pinnedModule } from "./runsc-build.ts";
import { ownRunsc } from "./runsc-own.ts";
import { changesText } from "./runsc-changes.ts";
import { generatorText } from "./runsc-seccomp.ts";
import { parseRunscVersion, type RunscVersion } from "./runsc-version.ts";
import { obtainArtifact } from "../store/store.ts";

export interface Runsc extends RunscVersion {
  /** The binary. Since September 2026 a release has programs in gvisor-bin/ beside it, which it may need. */
  readonly path: string;
}

/** Raise for changes of the build that its inputs do not show. */
const recipeVersion = 1;

const repairOwn =
  "set CLOCHE_RUNSC to a runsc binary or the folder of an official release, or unset it to have gVisor built (docs/operations.md, gVisor)";
const repairBuild =
  "check that the Go module proxy and the checksum database can be reached from this machine (curl -I https://proxy.golang.org; GOPROXY and GOSUMDB name others), where it has no Go the Debian mirror too, and run the command again; or set CLOCHE_RUNSC to an official release (docs/operations.md, gVisor)";

/** `own`: the setting CLOCHE_RUNSC. `path`: folders to search for `go`. */
export function obtainRunsc(
  cache: string,
  own: string | undefined,
  progress: Progress,
  path?: string,
): Promise<Runsc> {
  if (own) return inStep(progress, "gVisor (runsc)", repairOwn, () => ownRunsc(own));
  return inStep(progress, "gVisor (runsc)", repairBuild, async (detail) => {
    const folder = await built(cache, detail, path);
    const program = join(folder, "runsc");
    const { stdout } = await run([program, "--version"]).catch((error: Error) => {
      throw new Error(`the runsc in the cache does not start; remove ${folder}: ${error.message}`);
    });
    const version = parseRunscVersion(stdout);
    if (version?.version !== pinnedModule.version)
      throw new Error(`the runsc in the cache is not ${pinnedModule.version}; remove ${folder}`);
    return { path: program, ...version };
  });
}

async function built(
  cache: string,
  detail: (text: string) => void,
  path: string | undefined,
): Promise<string> {
  const artifact = await obtainArtifact(
    cache,
    {
      kind: "gvisor",
      inputs: {
        recipe: recipeVersion,
        ...pinnedModule,
        changes: changesText(),
        seccomp: await generatorText(),
        architecture: process.arch,
      },
      build: (into) => buildRunsc({ into, detail, ...(path !== undefined && { path }) }),
    },
    (_step, text) => detail(text ?? ""),
  );
  return artifact.path;
}
