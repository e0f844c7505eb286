// `npm run dev`: the service, started again at every change of its code. SIGTERM ends the service and leaves sandboxes running,
// and the next start adopts them. Ctrl-C does the same to the last one; `npm stop` suspends them.
import { type ChildProcess, spawn } from "node:child_process";
import { watch } from "node:fs";
import { fileURLToPath } from "node:url";

const settleMs = 300;
const root = fileURLToPath(new URL("..", import.meta.url));
const watched = ["packages", "native", "spec"];
const concerns = /\.(ts|c|h|proto|yaml|json)$/;

let service: ChildProcess | undefined;
let timer: NodeJS.Timeout | undefined;
let stopping = false;

function start(): void {
  const child = spawn(process.execPath, ["packages/app/src/main.ts", "up", ...process.argv.slice(2)], {
    cwd: root,
    stdio: "inherit",
  });
  service = child;
  child.once("exit", (code, signal) => {
    if (service !== child) return; // killed for a change
    service = undefined;
    if (stopping) process.exit(code ?? 1);
    console.error(`==> the service ended (${signal ?? code}); it starts again at the next change`);
  });
}

function restart(file: string): void {
  console.error(`==> ${file} has changed`);
  const old = service;
  service = undefined;
  if (old === undefined || old.exitCode !== null || old.signalCode !== null) return start();
  old.once("exit", start);
  old.kill("SIGTERM");
}

for (const folder of watched)
  watch(`${root}${folder}`, { recursive: true }, (_, name) => {
    const file = `${folder}/${name}`;
    if (stopping || name === null || !concerns.test(name) || /\.test\.ts$|node_modules|\/gen\//.test(file))
      return;
    clearTimeout(timer);
    timer = setTimeout(restart, settleMs, file);
  });
for (const signal of ["SIGINT", "SIGTERM"] as const)
  process.on(signal, () => {
    stopping = true;
    clearTimeout(timer);
    if (service === undefined) process.exit(0);
    service.kill(signal);
  });
start();
