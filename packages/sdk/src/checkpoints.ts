import type {
  CheckpointCreated,
  CheckpointDeleted,
  CheckpointRecord,
  CheckpointWaitResponse,
  RestoreResponse,
} from "@cloche/protocol";
import type { DataPlane } from "./data-plane.ts";
import type { CallOptions } from "./transport.ts";

/** Checkpoints of a sandbox's whole disk. */
export class Checkpoints {
  readonly #dataPlane: DataPlane;

  constructor(dataPlane: DataPlane) {
    this.#dataPlane = dataPlane;
  }

  /** Takes a checkpoint while the sandbox runs on; its upload goes on in the background. Without `name` a name is generated. */
  create(options: CallOptions & { name?: string } = {}): Promise<CheckpointCreated> {
    const { name, signal } = options;
    return this.#dataPlane.json("POST", "/v1/checkpoint", { json: { name }, signal });
  }

  /** All checkpoints, newest first; reads all pages. */
  async list(options: CallOptions = {}): Promise<CheckpointRecord[]> {
    const all: CheckpointRecord[] = [];
    let cursor: string | undefined;
    do {
      const request = { ...options, query: { cursor } };
      const page: { checkpoints: CheckpointRecord[]; cursor?: string } = await this.#dataPlane.json(
        "GET",
        "/v1/checkpoint/list",
        request,
      );
      all.push(...page.checkpoints);
      cursor = page.cursor;
    } while (cursor);
    return all;
  }

  /**
   * Waits until a checkpoint is visible in storage, which is needed to fork from it. Defaults: `poll_interval_ms` 100, `timeout_secs` 30.
   * `deadline_exceeded` (408) after that time.
   */
  wait(
    checkpointId: string,
    options: CallOptions & { poll_interval_ms?: number; timeout_secs?: number } = {},
  ): Promise<CheckpointWaitResponse> {
    const { signal, ...fields } = options;
    const json = { checkpoint_id: checkpointId, ...fields };
    return this.#dataPlane.json("POST", "/v1/checkpoint/wait", { json, signal, repeatable: true });
  }

  /** Removes a checkpoint from storage. `not_found` if the sandbox has no checkpoint with this id. */
  delete(checkpointId: string, options: CallOptions = {}): Promise<CheckpointDeleted> {
    const path = `/v1/checkpoint/${encodeURIComponent(checkpointId)}`;
    return this.#dataPlane.json("DELETE", path, { ...options, repeatable: false });
  }

  /** Rewinds the disk in place; id and token stay valid. All programs are stopped, and services that ran at that time are started. */
  restore(checkpointId: string, options: CallOptions = {}): Promise<RestoreResponse> {
    return this.#dataPlane.json("POST", "/v1/restore", { json: { checkpoint_id: checkpointId }, ...options });
  }
}
