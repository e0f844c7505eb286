// A round through the provider as a program makes it; prints one line of JSON.
import { cloche } from "../src/index.ts";

const compute = cloche({ user: "user" });
const sandbox = await compute.sandbox.create({
  name: "computesdk",
  envs: { WHO: "compute" },
  memory_mb: 512,
});
const ran = await sandbox.runCommand('echo "$WHO in $PWD"; echo oh >&2; exit 3', { cwd: "/srv" });
const pieces = [];
const late = await sandbox.runCommand("echo now; sleep 30", {
  timeout: 500,
  onStdout: (text) => pieces.push(text),
});
await sandbox.filesystem.writeFile("/home/user/kept", "kept");
const who = await sandbox.runCommand("stat -c %U /home/user/kept");
const snapshot = await compute.snapshot.create(sandbox.sandboxId, { name: "before" });
await sandbox.filesystem.remove("/home/user/kept");
// Creating from a checkpoint needs it in storage.
const again = await until(() => compute.sandbox.create({ snapshotId: snapshot.id }));
const kept = await again.filesystem.readFile("/home/user/kept");
const listed = (await compute.sandbox.list()).map(({ sandboxId }) => sandboxId);
const info = await sandbox.getInfo();
await again.destroy();
await sandbox.destroy();
await sandbox.destroy();
await compute.snapshot.delete(snapshot.id);
const gone = await compute.sandbox.getById(sandbox.sandboxId);
console.log(
  JSON.stringify({
    ran: [ran.stdout, ran.stderr, ran.exitCode],
    late: [late.exitCode, pieces.join("")],
    who: who.stdout,
    kept,
    listed: listed.includes(sandbox.sandboxId) && listed.includes(again.sandboxId),
    info: [info.status, info.timeout, info.metadata?.name],
    gone: gone === null,
  }),
);

async function until(make) {
  for (let tries = 0; ; tries++) {
    try {
      return await make();
    } catch (error) {
      if (error.code !== "failed_precondition" || tries === 100) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}
