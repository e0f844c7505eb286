// A client of the cluster, run inside the node: `client.ts create`, `client.ts ask <sandbox> <requests>`, `client.ts delete <sandbox>`.
// Prints one line of JSON. Where the gateways and edges are, and whom to trust, is in its environment.
import { Cloche } from "@cloche/sdk";

const COUNTER = `
import time
n = 0
while True:
    n += 1
    open("/tmp/count", "w").write(str(n))
    time.sleep(0.1)
`;
/** Count, pid, and when that process started, by the sandbox's own clock. */
const LOOK = `p=$(pgrep -xf 'python3 /root/counter.py'); echo $(cat /tmp/count) $p $(cut -d' ' -f22 /proc/$p/stat)`;

const cloche = new Cloche();
const [command, id = "", requests = "1"] = process.argv.slice(2);
if (command === "create") {
  const sandbox = await cloche.create({ name: "counter" });
  await sandbox.exec(["sh", "-c", `cat > /root/counter.py << 'E'${COUNTER}E`]);
  await sandbox.processes.start(["python3", "/root/counter.py"]);
  console.log(JSON.stringify({ id: sandbox.id }));
} else if (command === "delete") {
  await (await cloche.get(id)).delete();
  console.log("{}");
} else {
  const sandbox = await cloche.get(id);
  const errors: string[] = [];
  let last = "";
  for (let i = 0; i < Number(requests); i += 1) {
    const answer = await sandbox.exec(["sh", "-c", LOOK]).catch((error: Error) => error);
    if (answer instanceof Error) errors.push(answer.message);
    else last = answer.stdout.trim();
  }
  const [count, pid, start] = last.split(" ");
  console.log(
    JSON.stringify({ count: Number(count), pid: Number(pid), start, failed: errors.length, errors }),
  );
}
