/** `update`: makes old artifacts of this machine again; `--check` only lists them. The running service is not affected. */
import { type ArtifactState, checkForUpdates, makeUpdates } from "@cloche/artifacts";
import type { Config } from "@cloche/base";
import { agentBuild } from "./agent-build.ts";
import { terminalProgress } from "./progress.ts";

/** Answers whether an artifact was old. */
export async function update(config: Config, options: { check: boolean; json: boolean }): Promise<boolean> {
  const { cache } = config;
  const printer = terminalProgress();
  const progress = (step: string, detail?: string): void => printer.step(step, detail);
  const artifacts = await checkForUpdates(cache, progress);
  const isOld = artifacts.some(({ state }) => state === "old");
  if (isOld && !options.check) await makeUpdates({ cache, agent: agentBuild, progress }, artifacts);
  printer.done();
  const made = isOld && !options.check;
  if (options.json) console.log(JSON.stringify({ old: isOld, updated: made, artifacts }));
  else for (const line of linesOf(artifacts, made)) console.log(line);
  return isOld;
}

function linesOf(artifacts: readonly ArtifactState[], made: boolean): string[] {
  const lines = artifacts.flatMap(({ name, state, made_at, changes }) => [
    `${name}: ${state}${made_at === "" ? "" : `, made ${made_at.slice(0, 10)}`}`,
    ...changes.map((one) => `  ${one.package} ${one.installed || "(new)"} -> ${one.available}`),
  ]);
  if (made)
    lines.push(
      "made anew: the next start uses it, for new sandboxes. A restart of the service interrupts none that runs",
    );
  return lines;
}
