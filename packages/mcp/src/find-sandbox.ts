import type { Cloche, Sandbox } from "@cloche/sdk";
import { ToolError } from "./errors.ts";

export const isSandboxId = (word: string): boolean => /^sbx-[a-z0-9]{20}$/.test(word);

/** Finds a sandbox by its id or its name, which only one sandbox may have. Throws `not_found` if there is none. */
export async function findSandbox(cloche: Cloche, word: string, signal: AbortSignal): Promise<Sandbox> {
  if (isSandboxId(word)) return cloche.get(word, { signal });
  const found: Sandbox[] = [];
  // The service filters by the beginning of the name.
  for await (const sandbox of cloche.list({ name: word }, { signal }))
    if (sandbox.info.name === word && sandbox.info.state !== "SANDBOX_STATE_DELETING") found.push(sandbox);
  const [first, second] = found;
  if (first === undefined)
    throw new ToolError(
      `not_found: there is no sandbox with the id or name ${JSON.stringify(word)}; list_sandboxes names what there is`,
    );
  if (second !== undefined)
    throw new ToolError(
      `${found.length} sandboxes are named ${JSON.stringify(word)}: ${found.map(({ id }) => id).join(", ")}; use an id`,
    );
  return first;
}
