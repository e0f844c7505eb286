import type { CheckpointHeader, Chunk } from "../checkpoint/manifest.ts";

/** The header of a checkpoint of an empty disk. */
export const sampleHeader = (fields: Partial<CheckpointHeader> = {}): CheckpointHeader => ({
  id: "ckpt-aaaaaaaaaaaaaaaaaaaa",
  name: "one",
  team_id: "team-a",
  sandbox_id: "sbx-aaaaaaaaaaaaaaaaaaaa",
  created_at: "2026-01-01T00:00:00.000Z",
  size_bytes: 0,
  runtime: "gvisor",
  disk_bytes: 0,
  disk_mb: 1,
  running_services: [],
  ...fields,
});

export async function allChunks(
  pieces: AsyncIterable<(Chunk | undefined)[]>,
): Promise<(Chunk | undefined)[]> {
  const all: (Chunk | undefined)[] = [];
  for await (const piece of pieces) all.push(...piece);
  return all;
}
