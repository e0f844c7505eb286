#!/usr/bin/env node
// Runs the CLI with the project's own Node, because the machine's Node may be too old to read TypeScript. Therefore plain JavaScript.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "..");
const main = join(root, "packages", "cli", "src", "main.ts");
const neededMajor = 24;

if (Number(process.versions.node.split(".")[0]) >= neededMajor) {
  // Suppresses the warning that type stripping is experimental.
  const emit = process.emit.bind(process);
  process.emit = (event, ...rest) =>
    event === "warning" && rest[0]?.name === "ExperimentalWarning" ? false : emit(event, ...rest);
  await import(pathToFileURL(main).href);
} else {
  const own = [
    join(root, "node_modules", ".bin", "node"),
    join(root, ".node", "node_modules", ".bin", "node"),
  ].find(existsSync);
  if (own === undefined) {
    console.error(
      `cloche: Node ${neededMajor} or newer is needed and not installed yet; run npm start in ${root} once`,
    );
    process.exit(1);
  }
  // The channel carries no data. Its end tells the child that this process was killed, so that the child ends too.
  const child = spawn(own, ["--disable-warning=ExperimentalWarning", main, ...process.argv.slice(2)], {
    stdio: ["inherit", "inherit", "inherit", "ipc"],
  });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("exit", (code, signal) => process.exit(code ?? 128 + (constants.signals[signal] ?? 0)));
}
