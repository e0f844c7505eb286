// What the agent does in the middle of a snapshot: it writes everything out, and tells which files stand in the way.
import { ClocheError, limits } from "@cloche/protocol";
import type { PrepareSnapshotResponseJson } from "@cloche/protocol/guest";
import type { SnapshotHooks } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Parts } from "./parts.ts";

const PATHS_NAMED = 5;
const MIB = 1024 * 1024;

/** What a driver asks of the agent in the middle of a snapshot or swap. */
export function snapshotHooks({ agents }: Parts<"agents">, record: MachineRecord): SnapshotHooks {
  const agent = agents.of(record);
  return {
    async flush() {
      // The agent takes them one after the other; the way there they go together.
      const [prepared] = await Promise.all([agent.prepareSnapshot(), agent.prepareCheckpoint()]);
      if (record.runtime === "gvisor") refuseDeletedFiles(prepared);
    },
    async detachDisk() {
      await agent.detachDisk();
    },
  };
}

/**
 * gVisor writes deleted files that a process holds open into the memory image, by way of its own memory, which they must not
 * fill; and it cannot write any but regular files and directories.
 */
function refuseDeletedFiles({
  blockingPaths,
  deletedBytes,
  deletedPaths,
}: Required<PrepareSnapshotResponseJson>): void {
  const refuse = (what: string, paths: readonly string[]): never => {
    const named = paths.slice(0, PATHS_NAMED).join(", ");
    const more = paths.length > PATHS_NAMED ? ` and ${paths.length - PATHS_NAMED} more` : "";
    throw new ClocheError(
      "failed_precondition",
      `the memory cannot be saved while processes hold ${what} of the disk open: ${named}${more}; close them`,
      { details: paths.map((path) => ({ path })) },
    );
  };
  if (blockingPaths.length > 0) refuse("deleted sockets, FIFOs or devices", blockingPaths);
  if (Number(deletedBytes) > limits.deletedOpenBytes) {
    const mib = Math.ceil(Number(deletedBytes) / MIB);
    refuse(`${mib} MiB of deleted files (at most ${limits.deletedOpenBytes / MIB} MiB)`, deletedPaths);
  }
}
