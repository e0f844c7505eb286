import type { Cloche } from "@cloche/sdk";
import { mcpLimits } from "./limits.ts";

/** Ids of the team's sandboxes that begin with `begun`, newest first, for completion. */
export async function sandboxIds(cloche: Cloche, begun: string): Promise<string[]> {
  const page = await cloche.gateway.listSandboxes({ page_size: mcpLimits.sandboxesListed });
  const ids = page.sandboxes.map(({ id }) => id).filter((id) => id.startsWith(begun));
  return ids.slice(0, mcpLimits.completions);
}
