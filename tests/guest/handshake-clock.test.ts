// A virtual machine's clock is set forward, by hours, soon after it was restored: in the middle of a handshake too. OpenSSL then
// takes the agent's key for expired. Here a library below the agent's end of the channel sets the clock at that instant.
import { execFile, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { channelKeyOf } from "@cloche/base";
import { afterEach, expect, test } from "vitest";
import { AgentClient } from "../../packages/host/src/agent-calls/agent-client.ts";

const folder = mkdtempSync(join(tmpdir(), "cloche-handshake-"));
const library = join(folder, "set-forward.so");
const armed = join(folder, "armed");

/** Once the file is there: the right time to the first question, an hour more to all later ones. */
const librarySource = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <unistd.h>
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  static int asked;
  int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
  int result = real(time, zone);
  if (access("${armed}", F_OK) == 0 && asked++ > 0) time->tv_sec += 3600;
  return result;
}
`;

/** The agent's end of the channel. The clock is set when the key was asked for the first time. */
const agentSource = `
import { writeFileSync } from "node:fs";
import { createServer } from "node:https";
import { channelOptions } from "./packages/agent/src/http/channel-listener.ts";
import { ChannelKeys } from "./packages/agent/src/auth/channel-keys.ts";
const keys = new ChannelKeys(process.env.CHANNEL_KEY);
const options = channelOptions(keys);
let handshakes = 0;
const pskCallback = (...asked) => {
  handshakes += 1;
  if (handshakes === 1) writeFileSync(process.env.ARMED, "");
  return options.pskCallback(...asked);
};
const server = createServer({ ...options, pskCallback }, (_request, response) => {
  response.end(JSON.stringify({ openRequests: handshakes }));
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
`;

let agent: ChildProcess | undefined;
afterEach(() => {
  agent?.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});

test("a call reaches an agent whose clock is set forward within the call's handshake", async () => {
  writeFileSync(`${library}.c`, librarySource);
  await promisify(execFile)("gcc", ["-O2", "-shared", "-fPIC", "-o", library, `${library}.c`]);
  const env = { LD_PRELOAD: library, ARMED: armed, CHANNEL_KEY: channelKeyOf("secret").toString("hex") };
  const started = spawn(process.execPath, ["--input-type=module", "--eval", agentSource], {
    cwd: join(import.meta.dirname, "../.."),
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  agent = started;
  const [line] = (await once(started.stdout, "data")) as [Buffer];
  const address = { agentHost: "127.0.0.1", agentPort: Number(line.toString()) };
  const answer = await new AgentClient(address, "secret").getActivity();
  // The first handshake failed, although the agent has the key.
  expect(answer.openRequests).toBe(2);
});
