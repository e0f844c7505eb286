// A round through the sandbox of a Mastra workspace, by its command tool too; prints one line of JSON.
import { createWorkspaceTools, Workspace } from "@mastra/core/workspace";
import { RequestContext } from "@mastra/core/request-context";
import { Cloche } from "@cloche/sdk";
import { ClocheSandbox } from "../src/index.ts";

const cloche = new Cloche();
const sandbox = new ClocheSandbox({
  user: "user",
  env: { WHO: "mastra" },
  request: { name: "mastra", public_ports: ["*"] },
});
const workspace = new Workspace({ sandbox });
const before = sandbox.status;
await workspace.init();
const tools = await createWorkspaceTools(workspace);
const tool = tools.mastra_workspace_execute_command;
const told = await tool.execute(
  { command: "echo $WHO in $PWD as $(whoami)" },
  { workspace, requestContext: new RequestContext() },
);
const ran = await sandbox.executeCommand("sh", ["-c", "echo $WHO; echo 'o h' >&2; exit 3"], {
  env: { WHO: "you" },
});
const late = await sandbox.executeCommand("echo now; sleep 30", [], { timeout: 500 });
const empty = await sandbox.executeCommand("cat");

await sandbox.writeFiles([{ path: "/home/user/run.sh", content: "#!/bin/sh\necho file\n", mode: 0o755 }]);
const file = await sandbox.executeCommand("./run.sh");
const url = await sandbox.networking.getPortUrl(8000);

const chunks = [];
const cat = await sandbox.processes.spawn("cat; sleep 60", { onStdout: (text) => chunks.push(text) });
await cat.sendStdin("thr\u00f6ugh\n");
while (chunks.length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
await sandbox._stop();
const machine = sandbox.sandbox;
const stopped = [sandbox.status, (await machine.refresh()).state];

// Another object with its id goes on with the machine and what runs there.
const again = new ClocheSandbox({ id: sandbox.id, user: "user" });
await again.processes.list();
const found = await again.processes.get(cat.pid);
const one = (await again.processes.list()).find(({ pid }) => pid === cat.pid);
const kept = [again.sandbox.id === machine.id, found.stdout, one.command, one.running];
const killed = [await again.processes.kill(cat.pid), (await again.processes.get(cat.pid)) ?? null];
await sandbox.start();
const ended = await cat.wait();

await cloche.gateway.suspendSandbox(machine.id);
await machine.waitFor("SANDBOX_STATE_SUSPENDED");
const resumed = (await sandbox.executeCommand("cat run.sh | wc -l")).stdout;
await cloche.gateway.deleteSandbox(machine.id);
await machine.waitUntilDeleted();
const anew = (await sandbox.executeCommand("ls")).stdout;
const clone = sandbox.clone({ env: { MORE: "1" } });
const cloned = (await clone.executeCommand("echo $WHO$MORE")).stdout;
await clone._destroy();
await workspace.destroy();
await sandbox._destroy();
const left = [];
for await (const one of cloche.list({ name: "mastra" }))
  if (one.info.state !== "SANDBOX_STATE_DELETING") left.push(one.id);
console.log(
  JSON.stringify({
    before,
    told: String(told).trim(),
    ran: [ran.stdout, ran.stderr, ran.exitCode, ran.success],
    late: [late.stdout, late.exitCode, late.timedOut],
    empty: empty.exitCode,
    file: file.stdout,
    url: url.startsWith("https://8000-sbx-"),
    stopped,
    kept,
    killed: [...killed, ended.success, ended.stdout],
    resumed,
    anew,
    cloned,
    left,
  }),
);
