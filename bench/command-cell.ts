/** The packed command against the Node that runs it: what a shell, a script or an agent waits for at each call. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildCli } from "../scripts/package/build-cli.ts";
import type { Lab } from "./lab.ts";
import type { Cell } from "./runner.ts";

const floor = "node -e 0";

export async function commandCell(
  lab: Lab,
  samples: number,
): Promise<{ cell: Cell; close(): Promise<void> }> {
  const folder = await mkdtemp(join(tmpdir(), "cloche-bench-command-"));
  const sandbox = await lab.cloche.create();
  await buildCli(folder);
  const env = { ...process.env, CLOCHE_HOME: lab.service.home, XDG_CACHE_HOME: join(folder, "cache") };
  const node = async (words: string[]): Promise<void> => {
    const child = spawn(process.execPath, words, { env, stdio: ["ignore", "pipe", "inherit"] });
    const [code] = (await once(child, "exit")) as [number | null];
    if (code !== 0) throw new Error(`${words.join(" ")} ended with ${code}`);
  };
  const cloche = join(folder, "cloche.cjs");
  const cell: Cell = {
    name: "the cloche command, from its start to its end",
    samples,
    arms: [
      { name: floor, run: () => node(["-e", "0"]) },
      { name: "cloche exec BOX -- true", run: () => node([cloche, "exec", sandbox.info.name, "--", "true"]) },
    ],
    targets: [{ arm: "cloche exec BOX -- true", against: floor, atMost: 4 }],
  };
  return {
    cell,
    async close() {
      await sandbox.delete();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
