import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildAgent } from "@cloche/agent/build";
import { addonSources, buildAddon } from "@cloche/agent/build-addon";
import { buildNative, nativeSources } from "@cloche/agent/build-native";
import type { AgentBuild } from "@cloche/artifacts";

/** How the host gets the agent's files: from the sources of this checkout. */
export const agentBuild: AgentBuild = {
  sources: async () => [
    ...(await nativeSources()),
    ...addonSources(),
    ...(await typeScriptOf(fileURLToPath(new URL("../../agent/src/", import.meta.url)))),
    ...(await typeScriptOf(fileURLToPath(new URL("../../protocol/src/", import.meta.url)))),
  ],
  buildBundle: buildAgent,
  buildProgram: buildNative,
  buildAddon,
};

async function typeScriptOf(folder: string): Promise<string[]> {
  const names = await readdir(folder, { recursive: true });
  return names
    .filter((name) => name.endsWith(".ts") && !name.endsWith(".test.ts"))
    .sort()
    .map((name) => join(folder, name));
}
