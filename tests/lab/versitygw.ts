// The S3 server of the lab: versitygw over a folder, built once from its Go module into the cache, with the Go that builds gVisor.
// The module's checksum is pinned here; it covers the module's go.sum, and so everything that is compiled.
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { obtainGo } from "../../packages/artifacts/src/gvisor/go-tools.ts";
import { inStep, type Progress } from "../../packages/base/src/setup-step.ts";
import { obtainArtifact } from "../../packages/artifacts/src/store/store.ts";

const PINNED = {
  module: "github.com/versity/versitygw",
  version: "v1.8.0",
  /** Of the module's files, as in a go.sum. */
  sum: "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=",
  toolchain: "go1.26.8",
} as const;
const REPAIR =
  "check that the Go module proxy and the checksum database can be reached (curl -I https://proxy.golang.org), and run the command again";

/** The program's path. The first call of a machine builds it: about two minutes on two processors. */
export function obtainVersitygw(cache: string, progress: Progress): Promise<string> {
  return inStep(progress, "S3 server (versitygw)", REPAIR, async (detail) => {
    const artifact = await obtainArtifact(
      cache,
      {
        kind: "versitygw",
        inputs: { ...PINNED, architecture: process.arch },
        build: (into) => build(into, detail),
      },
      (_step, text) => detail(text ?? ""),
    );
    return join(artifact.path, "versitygw");
  });
}

async function build(into: string, detail: (text: string) => void): Promise<void> {
  const work = join(into, "work");
  await mkdir(work);
  const go = await obtainGo({ toolchain: PINNED.toolchain, work, detail });
  const wanted = `${PINNED.module}@${PINNED.version}`;
  detail(`fetching ${wanted} (Go module)`);
  // With -json a failure is told on stdout only; the second call finds what the first has fetched.
  await go.run(["mod", "download", wanted], { cwd: work });
  const { stdout } = await go.run(["mod", "download", "-json", wanted], { cwd: work });
  const { Sum: sum } = JSON.parse(stdout) as { Sum?: string };
  if (sum !== PINNED.sum) throw new Error(`${wanted} has the checksum ${sum}, not the pinned ${PINNED.sum}`);
  detail("compiling, about two minutes on two processors");
  await go.run(["install", "-trimpath", "-ldflags=-s -w", `${wanted.replace("@", "/cmd/versitygw@")}`], {
    cwd: work,
  });
  await rename(join(work, "gopath/bin/versitygw"), join(into, "versitygw"));
  await rm(work, { recursive: true });
}
