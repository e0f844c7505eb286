import { isCheckpointId, isSandboxId } from "@cloche/protocol";
import type { Cloche, Sandbox } from "@cloche/sdk";
import { NotFoundError } from "./exit-codes.ts";

/** Finds a sandbox by its id, its name or the beginning of its id. The word must match only one sandbox. */
export async function findSandbox(cloche: Cloche, nameOrId: string, signal: AbortSignal): Promise<Sandbox> {
  if (isSandboxId(nameOrId)) return cloche.get(nameOrId, { signal });
  const matching = async (
    name: string | undefined,
    fits: (sandbox: Sandbox) => boolean,
  ): Promise<Sandbox[]> => {
    const found: Sandbox[] = [];
    for await (const sandbox of cloche.list(name === undefined ? {} : { name }, { signal }))
      if (sandbox.info.state !== "SANDBOX_STATE_DELETING" && fits(sandbox)) found.push(sandbox);
    return found;
  };
  // The service filters by the beginning of the name, so that few sandboxes are sent.
  let found = await matching(nameOrId, ({ info }) => info.name === nameOrId);
  if (found.length === 0 && /^sbx-./.test(nameOrId))
    found = await matching(undefined, ({ id }) => id.startsWith(nameOrId));
  if (found.length === 1) return found[0] as Sandbox;
  if (found.length === 0)
    throw new NotFoundError(`there is no sandbox named ${JSON.stringify(nameOrId)}; see cloche ls`);
  throw new NotFoundError(
    `${found.length} sandboxes are named ${JSON.stringify(nameOrId)}: ${found.map(({ id }) => id).join(", ")}; use an id`,
  );
}

/** Finds a checkpoint of the sandbox by its id or its name. A name must match only one checkpoint. */
export async function findCheckpoint(
  sandbox: Sandbox,
  nameOrId: string,
  signal: AbortSignal,
): Promise<string> {
  if (isCheckpointId(nameOrId)) return nameOrId;
  const found = (await sandbox.checkpoints.list({ signal })).filter(({ name }) => name === nameOrId);
  if (found.length === 1 && found[0] !== undefined) return found[0].id;
  if (found.length === 0) {
    throw new NotFoundError(
      `the sandbox has no checkpoint named ${JSON.stringify(nameOrId)}; see cloche checkpoint ls`,
    );
  }
  throw new NotFoundError(
    `${found.length} checkpoints are named ${JSON.stringify(nameOrId)}: ${found.map(({ id }) => id).join(", ")}; use an id`,
  );
}
