import { isSandboxId } from "@cloche/protocol";
import type { Cloche, Sandbox } from "@cloche/sdk";
import { ToolError } from "./errors.ts";

/** Finds a sandbox by its id or its name, which only one sandbox may have. Throws `not_found` if there is none. */
export async function findSandbox(cloche: Cloche, nameOrId: string, signal: AbortSignal): Promise<Sandbox> {
  if (isSandboxId(nameOrId)) return cloche.get(nameOrId, { signal });
  const found: Sandbox[] = [];
  // The service filters by the beginning of the name.
  for await (const sandbox of cloche.list({ name: nameOrId }, { signal }))
    if (sandbox.info.name === nameOrId && sandbox.info.state !== "SANDBOX_STATE_DELETING")
      found.push(sandbox);
  const [first, second] = found;
  if (first === undefined)
    throw new ToolError(
      `not_found: there is no sandbox with the id or name ${JSON.stringify(nameOrId)}; list_sandboxes names what there is`,
    );
  if (second !== undefined)
    throw new ToolError(
      `${found.length} sandboxes are named ${JSON.stringify(nameOrId)}: ${found.map(({ id }) => id).join(", ")}; use an id`,
    );
  return first;
}
