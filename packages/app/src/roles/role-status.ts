/** The status file of a cluster's part, for `cloche status` and for a start with `--detach`. */
import type { Config } from "@cloche/base";
import type { Role } from "@cloche/trust";
import { packageVersion } from "../parts/operator.ts";
import type { Stops } from "../parts/stops.ts";
import { type RoleStatus, writeStatus } from "../status-file.ts";

/** Writes the file; called when the part is ready and again when it stops. */
export async function reportStatus(
  config: Config,
  role: Role,
  fields: Partial<RoleStatus>,
  stops: Stops,
): Promise<RoleStatus> {
  const status: RoleStatus = {
    role,
    id: config.nodeId,
    ...fields,
    version: packageVersion(),
    pid: process.pid,
    ready: true,
  };
  await writeStatus(config.home, status);
  stops.add("status", () => writeStatus(config.home, { ...status, ready: false, pid: 0 }));
  return status;
}
