/**
 * `unshare -m node idle-agent.ts <services> <root>`: the agent's own bundle on a copy-on-write view of a root file system, with
 * that many idle services. Prints its pid once they run, ends with its standard input.
 */
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildAgent } from "@cloche/agent/build";
import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { channelKeyOf, connectToAgent } from "@cloche/base";
import { controlSecret, issuer, sandboxId, token } from "../packages/agent/src/testing/agent-fixture.ts";
import { guestBinary } from "../tests/guest/guest-fixture.ts";
import { freePort } from "../tests/oci/registry-fixture.ts";

const [count = "0", root = "/"] = process.argv.slice(2);
const secret = "bench";
let agent: ReturnType<typeof spawn> | undefined;
const folder = mkdtempSync(join(tmpdir(), "cloche-idle-agent-"));
const at = (name: string): string => join(folder, name);
process.once("exit", () => {
  agent?.removeAllListeners("exit");
  agent?.kill("SIGKILL"); // its guest ends with it
  for (const name of ["disk/fs", "layers"]) spawnSync("umount", ["-l", at(name)], { stdio: "ignore" });
  rmSync(folder, { recursive: true, force: true });
});
const diskPath = join(folder, "disk");
for (const name of ["disk/fs", "disk/cloche", "layers"]) mkdirSync(at(name), { recursive: true });
execFileSync("mount", ["-t", "tmpfs", "tmpfs", at("layers")]);
for (const name of ["layers/upper", "layers/work"]) mkdirSync(at(name));
const layers = `lowerdir=${root},upperdir=${at("layers/upper")},workdir=${at("layers/work")}`;
execFileSync("mount", ["-t", "overlay", "-o", layers, "overlay", at("disk/fs")]);
copyFileSync(await guestBinary(), at("cloche-guest"));
await buildAgent(at("agent.cjs"));
const port = await freePort();
const boot = {
  host: "127.0.0.1",
  port,
  diskPath,
  nativeDir: folder,
  bootstrapControlSecretSha256: createHash("sha256").update(secret).digest("hex"),
  bootstrapChannelKey: channelKeyOf(secret).toString("hex"),
};
writeFileSync(at("boot.json"), JSON.stringify(boot));
agent = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", at("agent.cjs"), at("boot.json")], {
  stdio: ["ignore", "ignore", "pipe"],
});
agent.once("exit", () => process.exit(1));
process.stdin.once("end", () => process.exit(0)).resume();
await new Promise<void>((resolve) => {
  let told = "";
  agent?.stderr?.on("data", (chunk: Buffer) => {
    told += chunk.toString();
    if (told.includes("listening")) resolve();
  });
});

let key = channelKeyOf(secret);
const call = async (method: string, path: string, body: object, authorization: string): Promise<void> => {
  const text = JSON.stringify(body);
  const headers = { authorization: `Bearer ${authorization}`, "content-length": Buffer.byteLength(text) };
  const createConnection = () => connectToAgent({ host: "127.0.0.1", port, key });
  const asked = request({ createConnection, method, path, headers: { ...headers, connection: "close" } });
  asked.end(text);
  const [answer] = (await once(asked, "response")) as [IncomingMessage];
  answer.resume();
  if (answer.statusCode !== 200) throw new Error(`${method} ${path}: ${answer.statusCode}`);
};
const identity = { sandboxId, controlSecret, issuer, hostname: "box" };
await call("POST", "/cloche.guest.v1.GuestService/Assign", identity, secret);
key = channelKeyOf(controlSecret);
for (let service = 0; service < Number(count); service += 1) {
  await call("PUT", `/v1/services/idle-${service}`, { cmd: "sleep", args: ["100000"] }, token());
  await call("POST", `/v1/services/idle-${service}/start`, {}, token());
}
console.log(agent.pid);
