// Hardened computers give root's shell a strict umask. What is made for sandboxes is readable there all the same; secrets are not.
import { statSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Client } from "../fixtures/client.ts";
import { repositoryRoot, runCommand, TestService } from "../fixtures/service.ts";

test.concurrent.for(["027", "077"])("a service started under umask %s", async (mask, context) => {
  const service = await TestService.create({ CLOCHE_WARM_POOL: "0" });
  context.onTestFinished(async () => expect(await service.destroy()).toEqual([]));
  context.onTestFailed(() => console.error(service.logTail()));
  const line = `umask ${mask} && exec sh scripts/run.sh up --detach`;
  const options = { env: service.env, cwd: repositoryRoot, deadlineMs: 300_000 };
  const started = await runCommand("sh", ["-c", line], options);
  expect(started.code, started.stderr).toBe(0);
  await service.start(); // finds it running

  const client = new Client(service.target());
  const sandbox = await client.create();
  for (const user of ["root", "user", "12345"]) {
    const script = "cat /etc/hostname && ls / /usr/bin && python3 -c 'print(6*7)' && umask";
    const { stdout, stderr, exit_code: code } = await client.exec(sandbox, ["sh", "-c", script], { user });
    expect({ code, stderr }, user).toEqual({ code: 0, stderr: "" });
    expect(stdout.trim().split("\n").slice(-2), user).toEqual(["42", "0022"]);
  }
  await client.close();

  const openToOthers = ["", "keys", "cloche.db", "log", "blobs"].filter(
    (name) => (statSync(join(service.home, name)).mode & 0o077) !== 0,
  );
  expect(openToOthers).toEqual([]);
});
