// Builds every artifact and opens the pool, without the service: `node packages/host/src/build-artifacts.ts`.
// For set-up by hand and for developers. CLOCHE_HOME, CLOCHE_CACHE and CLOCHE_RUNSC are read from the environment.
import { defaults } from "@cloche/protocol";
import { openTemplates } from "./disk/template.ts";
import { closePool, openPool } from "./pool/pool.ts";
import { Native } from "./sys/native.ts";
import { obtainBaseImage } from "./artifacts/base-image.ts";
import { obtainBaseRootfs } from "./artifacts/base-rootfs.ts";
import { ensureHostPackages } from "./artifacts/host-packages.ts";
import { obtainNative } from "./artifacts/native.ts";
import { obtainRunsc } from "./artifacts/runsc.ts";
import { SetupError } from "./artifacts/step.ts";

const started = Date.now();
const progress = (step: string, detail?: string) =>
  console.error(
    `${((Date.now() - started) / 1_000).toFixed(1).padStart(6)} s  ${step}${detail ? `: ${detail}` : ""}`,
  );

const home = process.env.CLOCHE_HOME ?? "/var/lib/cloche";
const cache = process.env.CLOCHE_CACHE ?? `${home}/cache`;
try {
  if (process.argv[2] === "close-pool") await closePool(home);
  else {
    await ensureHostPackages(progress);
    const runsc = await obtainRunsc(cache, process.env.CLOCHE_RUNSC, progress);
    const node = { nodeBinary: process.execPath, nodeVersion: process.version };
    const rootfs = await obtainBaseRootfs(cache, node, progress);
    const image = await obtainBaseImage(cache, rootfs, progress);
    const program = await obtainNative(cache, progress);
    const pool = await openPool({ home, progress });
    const native = new Native(program);
    const templates = await openTemplates({
      pool,
      native,
      base: image,
      sizesMb: [defaults.diskMb],
      progress,
    });
    const template = await templates.ofSize(defaults.diskMb);
    await native.close();
    console.log(JSON.stringify({ runsc, rootfs, image, native: program, pool, template }, null, 2));
  }
} catch (error) {
  console.error(error instanceof SetupError ? error.message : error);
  process.exitCode = 1;
}
