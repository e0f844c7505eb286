// gVisor's runsc: the user's own (CLOCHE_RUNSC) or the one of Debian's backports, unpacked privately into the cache.
import { constants } from "node:fs";
import { access } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../sys/run.ts";
import { DEBIAN_SUITE, debianMirrors } from "./debian-mirror.ts";
import { unpackPrivateDebs } from "./private-deb.ts";
import { inStep, type Progress } from "./step.ts";
import { obtainArtifact } from "./store.ts";

export interface Runsc {
  readonly path: string;
  /** As `runsc --version` says, for example "0.0~20240729.0". */
  readonly version: string;
}

const REPAIR =
  "check that the Debian mirror of this machine can be reached (apt-get update) and run the command again, or set CLOCHE_RUNSC to the path of a runsc binary";

/** `userPath`: the setting CLOCHE_RUNSC, taken as it is when given. */
export function obtainRunsc(cache: string, userPath: string | undefined, progress: Progress): Promise<Runsc> {
  return inStep(progress, "gVisor (runsc)", REPAIR, async (detail) => {
    const path = userPath ?? (await unpacked(cache, detail));
    await access(path, constants.X_OK).catch(() => {
      throw new Error(`${path} is missing or not executable`);
    });
    const { stdout } = await run([path, "--version"]);
    const version = /version\s+(\S+)/.exec(stdout)?.[1];
    if (!version) throw new Error(`${path} --version does not look like runsc`);
    return { path, version };
  });
}

async function unpacked(cache: string, detail: (text: string) => void): Promise<string> {
  const suite = `${DEBIAN_SUITE}-backports`;
  const artifact = await obtainArtifact(
    cache,
    {
      kind: "runsc",
      inputs: { suite, architecture: process.arch, recipe: 1 },
      build: async (into) => {
        const { main } = await debianMirrors();
        detail(`fetching from ${suite}`);
        await unpackPrivateDebs({ mirror: main, suite, packages: ["runsc"], into });
      },
    },
    (_step, text) => detail(text ?? ""),
  );
  return join(artifact.path, "usr/bin/runsc");
}
