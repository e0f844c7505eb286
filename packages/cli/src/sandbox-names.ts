import { ConflictError } from "./exit-codes.ts";
import type { Run } from "./register.ts";
import { shortState } from "./sandbox-format.ts";

/**
 * Refuses the name of another sandbox of the team, because the command finds sandboxes by name. The service itself
 * allows it. A repeated call with an idempotency key is not refused: its sandbox has the name already.
 */
export async function nameIsFree(
  { cloche, signal }: Run,
  wanted: { name?: string; allowDuplicateName?: boolean; idempotencyKey?: string; count?: number },
): Promise<void> {
  const { name } = wanted;
  if (name === undefined || wanted.allowDuplicateName === true || wanted.idempotencyKey !== undefined) return;
  const isTaken = wanted.count === undefined ? (one: string) => one === name : numbered(name, wanted.count);
  for await (const { id, info } of cloche.list({ name }, { signal })) {
    if (!isTaken(info.name) || info.state === "SANDBOX_STATE_DELETING") continue;
    const is = `${id} is named ${JSON.stringify(info.name)} and is ${shortState(info.state)}`;
    throw new ConflictError(
      `${is}; use it, delete it with cloche rm ${id}, take another name, or add --allow-duplicate-name`,
    );
  }
}

/** The names of so many clones: `name-1`, `name-2`, … */
function numbered(name: string, count: number): (one: string) => boolean {
  return (one) => {
    const number = one.startsWith(`${name}-`) ? one.slice(name.length + 1) : "";
    return /^[1-9]\d{0,2}$/.test(number) && Number(number) <= count;
  };
}
