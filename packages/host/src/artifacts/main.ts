// Builds every artifact and opens the pool, without the service: `node packages/host/src/artifacts/main.ts`.
// For set-up by hand and for developers. CLOCHE_HOME, CLOCHE_CACHE and CLOCHE_RUNSC are read from the environment.
import { closePool, openPool } from "../pool/pool.ts";
import { obtainBaseImage } from "./base-image.ts";
import { obtainBaseRootfs } from "./base-rootfs.ts";
import { ensureHostPackages } from "./host-packages.ts";
import { obtainRunsc } from "./runsc.ts";
import { SetupError } from "./step.ts";

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
    const pool = await openPool({ home, progress });
    console.log(JSON.stringify({ runsc, rootfs, image, pool }, null, 2));
  }
} catch (error) {
  console.error(error instanceof SetupError ? error.message : error);
  process.exitCode = 1;
}
