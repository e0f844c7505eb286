/** `--detach` of `up` and of the roles: starts the program in a new process. Loads no parts here, so only that process pays for them. */
import { spawn } from "node:child_process";
import { closeSync, mkdirSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Config } from "@cloche/base";
import { printBanner } from "./banner.ts";
import { AlreadyRunning, pingControl } from "./control-socket.ts";
import { isOfRole, readStatus } from "./status-file.ts";

class StartFailed extends Error {
  override readonly name = "StartFailed";
}

/** Returns when the program is ready; shows its output until then. */
export async function startDetached(config: Config, command: string): Promise<void> {
  if (await pingControl(config.home))
    throw new AlreadyRunning(`a service of ${config.home} is running already`);
  mkdirSync(join(config.home, "log"), { recursive: true, mode: 0o700 });
  const consoleFile = join(config.home, "log", "console.log");
  const output = openSync(consoleFile, "w", 0o600);
  const main = fileURLToPath(new URL("main.ts", import.meta.url));
  const child = spawn(process.execPath, [...process.execArgv, main, command, "--no-banner"], {
    detached: true,
    stdio: ["ignore", output, output],
  });
  closeSync(output);
  let exitCode: number | null | undefined;
  child.once("exit", (code) => {
    exitCode = code;
  });
  let shown = 0;
  const show = (): void => {
    const text = readFileSync(consoleFile, "utf8");
    process.stderr.write(text.slice(shown));
    shown = text.length;
  };
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    show();
    const status = await readStatus(config.home);
    if (status?.ready && status.pid === child.pid) {
      child.unref();
      if (!isOfRole(status)) await printBanner(config, status);
      return;
    }
    if (exitCode !== undefined) {
      show();
      throw new StartFailed(
        `the service ended while starting (exit code ${exitCode}); see above and ${consoleFile}`,
      );
    }
  }
}
