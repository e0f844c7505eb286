/**
 * Debian's static busybox, unpacked privately: shell and tools of system roots that have no libc. Not installed on the computer,
 * where it would conflict with the dynamic busybox package.
 */
import { join } from "node:path";
import { inStep, type Progress } from "@cloche/base";
import { debianSuite } from "../apt/debian-mirror.ts";
import { unpackPrivateDebs } from "../apt/private-deb.ts";
import { obtainVersioned, type VersionedRequest } from "../store/versioned.ts";

const packageName = "busybox-static";

export const busyboxRequest = (): VersionedRequest => ({
  kind: "busybox",
  inputs: { suite: debianSuite, architecture: process.arch, recipe: 1 },
  build: (into) => unpackPrivateDebs({ packages: [packageName], into }),
});

/** The packages that a build now would use. */
export const busyboxPackages = async (): Promise<string[]> => [packageName];

/** Answers the path of the binary. */
export function obtainBusybox(cache: string, progress: Progress): Promise<string> {
  const repair =
    "check that the Debian mirror of this machine can be reached (apt-get update) and run the command again";
  return inStep(progress, "static busybox", repair, async (detail) => {
    const artifact = await obtainVersioned(cache, busyboxRequest(), (_step, text) => detail(text ?? ""));
    return join(artifact.path, "bin/busybox");
  });
}
