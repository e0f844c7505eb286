/** E2B's snapshots are Cloche's checkpoints: the disk at one instant, from which new sandboxes are made. */
import type { TeamCheckpoint } from "@cloche/sdk";
import { ClocheApiError } from "@cloche/sdk";
import { isCheckpointId, isSandboxId } from "@cloche/protocol";
import { E2bError, notOffered, notRunning } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import {
  type ApiAnswer,
  type ApiCall,
  created,
  empty,
  flag,
  ok,
  textField,
  wholeNumber,
} from "./api-call.ts";
import { noTemplate } from "./create.ts";
import { named } from "./waiting.ts";

const pageDefault = 100;
const uploadSeconds = 50;

/** `POST …/snapshots`: answers once sandboxes can be made from the snapshot. */
export async function snapshot(call: ApiCall): Promise<ApiAnswer> {
  const { sandboxes, apiKey, body } = call;
  if (flag(body, "memory") === true)
    throw notOffered("snapshots with memory; fork the sandbox to clone its processes");
  const info = await named(call);
  if (info.state !== "SANDBOX_STATE_RUNNING") throw notRunning(info.id);
  const { checkpoints } = (await sandboxes.open(info.id, apiKey)).plane;
  const name = textField(body, "name");
  const { checkpoint_id: id } = await checkpoints.create(name === undefined ? {} : { name });
  await checkpoints.wait(id, { timeout_secs: uploadSeconds });
  return created({ snapshotID: id, names: name === undefined ? [] : [name] });
}

/** `GET /snapshots`: newest first; the next page begins after the id in `nextToken`. */
export async function listSnapshots({ gateway, query }: ApiCall): Promise<ApiAnswer> {
  const limit = wholeNumber(query, "limit", { min: 1, max: pageDefault }) ?? pageDefault;
  const sandboxId = query.get("sandboxID");
  const name = query.get("name");
  // An invalid sandbox id has no snapshots.
  if (sandboxId !== null && !isSandboxId(sandboxId)) return ok([]);
  const all = await gateway.listCheckpoints(sandboxId === null ? {} : { sandbox_id: sandboxId });
  const fitting = all.filter((one) => one.visible && (name === null || one.name === name));
  const token = query.get("nextToken");
  const from = token === null ? 0 : fitting.findIndex(({ id }) => id === token) + 1;
  const page = fitting.slice(from, from + limit);
  const isLast = from + limit >= fitting.length;
  return ok(page.map(toSnapshot), isLast ? {} : { "x-next-token": page.at(-1)?.id ?? "" });
}

const toSnapshot = ({ id, name }: TeamCheckpoint): Fields => ({
  snapshotID: id,
  names: name === "" ? [] : [name],
});

/** `DELETE /templates/{id}` of a snapshot, by id or name. */
export async function deleteSnapshot({ gateway, params }: ApiCall): Promise<ApiAnswer> {
  const wanted = params.templateID ?? "";
  const id = isCheckpointId(wanted)
    ? wanted
    : (await gateway.listCheckpoints()).find(({ name }) => name === wanted)?.id;
  if (id === undefined) throw noTemplate(wanted);
  try {
    await gateway.deleteCheckpoint(id);
  } catch (error) {
    if (error instanceof ClocheApiError && error.code === "not_found") throw noTemplate(wanted, error);
    throw E2bError.from(error);
  }
  return empty;
}
