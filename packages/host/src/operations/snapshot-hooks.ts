/**
 * The agent's part of a snapshot: it writes everything to the disk and names the files that prevent a snapshot.
 */
import { ClocheError, limits } from "@cloche/protocol";
import type { PrepareSnapshotResponseJson } from "@cloche/protocol/guest";
import type { SnapshotHooks } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Parts } from "./parts.ts";

const pathsNamed = 5;
const bytesPerMib = 1024 * 1024;

/** The calls that a driver makes to the agent during a snapshot or a swap of disks. */
export function snapshotHooks({ agents }: Parts<"agents">, record: MachineRecord): SnapshotHooks {
  const agent = agents.of(record);
  return {
    async flush() {
      const prepared = await agent.prepareSnapshot();
      if (record.runtime === "gvisor") refuseDeletedFiles(prepared);
    },
    async detachDisk() {
      await agent.detachDisk();
    },
  };
}

/**
 * gVisor saves deleted files that a process holds open in the memory image. They pass through gVisor's own memory, so their size
 * is limited. It can save only regular files and directories.
 */
function refuseDeletedFiles({
  blockingPaths,
  deletedBytes,
  deletedPaths,
}: Required<PrepareSnapshotResponseJson>): void {
  const refuse = (what: string, paths: readonly string[]): never => {
    const named = paths.slice(0, pathsNamed).join(", ");
    const more = paths.length > pathsNamed ? ` and ${paths.length - pathsNamed} more` : "";
    throw new ClocheError(
      "failed_precondition",
      `the memory cannot be saved while processes hold ${what} of the disk open: ${named}${more}; close them`,
      { details: paths.map((path) => ({ path })) },
    );
  };
  if (blockingPaths.length > 0) refuse("deleted sockets, FIFOs or devices", blockingPaths);
  if (Number(deletedBytes) > limits.deletedOpenBytes) {
    const mib = Math.ceil(Number(deletedBytes) / bytesPerMib);
    refuse(
      `${mib} MiB of deleted files (at most ${limits.deletedOpenBytes / bytesPerMib} MiB)`,
      deletedPaths,
    );
  }
}
