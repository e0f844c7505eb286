// A client of the cluster, run inside a node: `client.ts create`, `client.ts ask <sandbox> <requests>`, `client.ts delete <sandbox>`,
// `client.ts load <sandbox>`, which asks until its standard input ends. Prints one line of JSON. Where the gateways and edges are,
// and whom to trust, is in its environment.
import { setTimeout as sleep } from "node:timers/promises";
import { Cloche, type Sandbox } from "@cloche/sdk";

/** The file is replaced, so that it is never seen empty. */
const COUNTER = `
import os, time
n = 0
while True:
    n += 1
    with open("/tmp/new", "w") as file: file.write(str(n))
    os.replace("/tmp/new", "/tmp/count")
    time.sleep(0.1)
`;
/** Count, pid, and when that process started, by the sandbox's own clock. */
const LOOK = `p=$(pgrep -xf 'python3 /root/counter.py'); echo $(cat /tmp/count) $p $(cut -d' ' -f22 /proc/$p/stat)`;
const PAUSE_MS = 50;

const cloche = new Cloche();
const [command, id = "", requests = "1"] = process.argv.slice(2);
console.log(JSON.stringify(await answer()));

async function answer(): Promise<object> {
  if (command === "create") return await create();
  const sandbox = await cloche.get(id);
  if (command === "load") return await load(sandbox);
  if (command === "ask") return await ask(sandbox, Number(requests));
  await sandbox.delete();
  return {};
}

async function create(): Promise<object> {
  const sandbox = await cloche.create({ name: "counter" });
  await sandbox.exec(["sh", "-c", `cat > /root/counter.py << 'E'${COUNTER}E`]);
  await sandbox.processes.start(["python3", "/root/counter.py"]);
  return { id: sandbox.id };
}

async function ask(sandbox: Sandbox, count: number): Promise<object> {
  const errors: string[] = [];
  let last = "";
  for (let i = 0; i < count; i += 1) {
    const said = await sandbox.exec(["sh", "-c", LOOK]).catch((error: Error) => error);
    if (said instanceof Error) errors.push(said.message);
    else last = said.stdout.trim();
  }
  const [seen, pid, start] = last.split(" ");
  return { count: Number(seen), pid: Number(pid), start, failed: errors.length, errors };
}

/** One request after the other, of an edge and of a gateway in turn. */
async function load(sandbox: Sandbox): Promise<object> {
  let isOver = false;
  process.stdin.resume().once("end", () => {
    isOver = true;
  });
  const errors: string[] = [];
  const startedMs = performance.now();
  let [asked, longestMs] = [0, 0];
  console.log("begun");
  for (; !isOver; asked += 1) {
    const beganMs = performance.now();
    const request = asked % 2 === 0 ? sandbox.exec(["echo", "here"]) : cloche.get(id);
    const error = await request.then(
      () => undefined,
      (reason: Error) => reason,
    );
    const tookMs = performance.now() - beganMs;
    longestMs = Math.max(longestMs, tookMs);
    if (error) {
      const at = ((beganMs - startedMs) / 1_000).toFixed(1);
      const what = asked % 2 === 0 ? "exec" : "get";
      errors.push(`${what} at ${at} s, after ${Math.round(tookMs)} ms: ${error.message}`);
    }
    await sleep(PAUSE_MS);
  }
  return { asked, longestMs: Math.round(longestMs), failed: errors.length, errors };
}
