import { dirname, join } from "node:path";
import { createAgent } from "./agent.ts";
import { type BootConfig, readBootConfig } from "./boot-config.ts";
import { stderrLog } from "./log.ts";
import { limitProcfs, NativeSpawner } from "./spawner/index.ts";

/** `node agent.cjs <boot config>` serves until SIGTERM; `node agent.cjs pull` fetches an image for a container. */
const log = stderrLog();
const configPath = process.argv[2];
if (configPath === undefined) {
  log.error("usage: node agent.cjs <boot config>");
  process.exit(2);
}
// Loaded only by the process that pulls: TLS and decompression would cost every agent's start.
if (configPath === "pull")
  void import("./oci-images/pull-process.ts").then(({ runPullProcess }) => runPullProcess());
else serve(configPath);

function spawnerOf({ nativeDir, memoryGuard, userNamespace }: BootConfig): NativeSpawner {
  return new NativeSpawner(join(nativeDir, "cloche-guest"), { memoryGuard, userNamespace });
}

function serve(path: string): void {
  const config = readBootConfig(path, dirname(process.argv[1] ?? "."));
  try {
    limitProcfs(join(config.nativeDir, "cloche-guest"));
  } catch (error) {
    log.warn("procfs remembers processes that have ended: forks will take longer", { error });
  }
  const agent = createAgent(config, spawnerOf(config), log, [process.execPath, process.argv[1] ?? ""]);
  agent.server.on("error", (error) => {
    log.error("cannot listen", { error });
    process.exit(1);
  });
  const { host, port, listenFd } = config;
  agent.server.listen(listenFd === undefined ? { port, host } : { fd: listenFd }, () => {
    log.info("listening", { address: agent.server.address(), pid: process.pid });
  });
  // An uncaught error of one request must not end the agent.
  process.on("uncaughtException", (error) => log.error("uncaught", { error }));
  process.on("unhandledRejection", (error) => log.error("unhandled rejection", { error }));
  process.once("SIGTERM", () => {
    void agent.close().finally(() => process.exit(0));
  });
}
