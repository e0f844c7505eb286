// Debian's static busybox, unpacked privately: the shell and tools of system roots that have no libc of their own to
// rely on. Not installed on the machine, where it would conflict with the dynamic busybox package.
import { join } from "node:path";
import { DEBIAN_SUITE, debianMirrors } from "./debian-mirror.ts";
import { unpackPrivateDebs } from "./private-deb.ts";
import { inStep, type Progress } from "./step.ts";
import { obtainArtifact } from "./store.ts";

/** Answers the path of the binary. */
export function obtainBusybox(cache: string, progress: Progress): Promise<string> {
  const repair =
    "check that the Debian mirror of this machine can be reached (apt-get update) and run the command again";
  return inStep(progress, "static busybox", repair, async (detail) => {
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "busybox",
        inputs: { suite: DEBIAN_SUITE, architecture: process.arch, recipe: 1 },
        build: async (into) => {
          const { main } = await debianMirrors();
          await unpackPrivateDebs({ mirror: main, suite: DEBIAN_SUITE, packages: ["busybox-static"], into });
        },
      },
      (_step, text) => detail(text ?? ""),
    );
    return join(artifact.path, "bin/busybox");
  });
}
