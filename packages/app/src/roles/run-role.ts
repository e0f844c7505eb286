/** `gateway`, `edge`, `host`: runs one part of a cluster in this process until it is stopped. */
import type { Config } from "@cloche/base";
import type { Role } from "@cloche/trust";
import { serve } from "../serve.ts";

/** A role loads only its own parts. */
const starts = {
  gateway: async () => (await import("./gateway.ts")).startGatewayRole,
  edge: async () => (await import("./edge.ts")).startEdgeRole,
  host: async () => (await import("./host.ts")).startHostRole,
};

export async function runRole(config: Config, role: Role): Promise<void> {
  const { checkRole } = await import("../cluster/role-settings.ts");
  // Before the home is changed.
  checkRole(role, config);
  const start = await starts[role]();
  await serve(config, {
    ...(role === "host" &&
      config.hostInPod && {
        before: async (report) => await (await import("../up.ts")).waitForHome(config.home, report),
      }),
    start: (log, progress) => start(config, log, progress),
    ready: async () => console.error(`cloche: ${role} ${config.nodeId} is ready`),
  });
}
