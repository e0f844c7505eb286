// No key of the service is inside a sandbox, not even in the agent's memory: a machine's saved memory, disk and files are searched for them.
import { createPrivateKey, randomBytes } from "node:crypto";
import { createReadStream, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, inject, test } from "vitest";
import { eventually, sharedClient } from "../fixtures/client.ts";

const { home } = inject("service");
const client = sharedClient();

interface Secret {
  name: string;
  bytes: Buffer;
}

/** What makes a private key private, as it lies in a parsed key and, in Base64, in a file. */
function secretsOfKey(name: string, pem: string): Secret[] {
  const jwk = createPrivateKey(pem).export({ format: "jwk" });
  const number = Buffer.from(jwk.p ?? jwk.d ?? "", "base64url");
  expect(number.length).toBeGreaterThan(16);
  // OpenSSL keeps numbers as words, the least first.
  const turned = Buffer.from(number).reverse();
  const middle = pem.split("\n")[1] ?? "";
  return [
    { name: `${name}, number`, bytes: number },
    { name: `${name}, number turned`, bytes: turned },
    { name: `${name}, PEM`, bytes: Buffer.from(middle) },
  ];
}

/** Names of those that are in one of the files. A file may go meanwhile: what is left of the ended process is removed behind SUSPENDED. */
async function found(files: readonly string[], secrets: readonly Secret[]): Promise<string[]> {
  const names = new Set<string>();
  const longest = Math.max(...secrets.map(({ bytes }) => bytes.length));
  for (const file of files) {
    let tail = Buffer.alloc(0);
    const chunks: AsyncIterable<Buffer> = createReadStream(file, { highWaterMark: 4 * 1024 * 1024 });
    try {
      for await (const chunk of chunks) {
        const text = Buffer.concat([tail, chunk]);
        for (const { name, bytes } of secrets) if (text.includes(bytes)) names.add(name);
        tail = text.subarray(-longest);
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    }
  }
  return [...names];
}

test("a machine holds no key of the service, in memory or on disk", async () => {
  const sandbox = await client.create({ disk_mb: 1_024 });
  // What is to be found, so that finding nothing means something: in a process's memory, and on the disk.
  const inMemory = randomBytes(24);
  const onDisk = randomBytes(24);
  const hold = `x = bytes.fromhex("${inMemory.toString("hex")}"); import time; print("held", flush=True); time.sleep(1000)`;
  await client.call(sandbox, "POST", "/v1/files?path=/root/marker", { body: onDisk });
  await client.shell(
    sandbox,
    `sync; (setsid python3 -c '${hold}' > /root/said 2>&1 &); until grep -q held /root/said; do sleep 0.1; done`,
  );
  await client.gateway("SuspendSandbox", { id: sandbox.id });
  const state = async (): Promise<string> =>
    (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id })).sandbox.state;
  expect(await eventually(state, (one) => one === "SANDBOX_STATE_SUSPENDED", 120_000)).toBe(
    "SANDBOX_STATE_SUSPENDED",
  );

  const folder = join(home, "pool/machines", sandbox.id);
  const files = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  const markers = [
    { name: "memory", bytes: inMemory },
    { name: "disk", bytes: onDisk },
  ];
  expect((await found(files, markers)).toSorted()).toEqual(["disk", "memory"]);

  const signing = join(home, "keys/signing");
  const secrets = [
    ...secretsOfKey("TLS", readFileSync(join(home, "tls/edge-key.pem"), "utf8")),
    ...secretsOfKey("CA", readFileSync(join(home, "tls/ca-key.pem"), "utf8")),
    ...readdirSync(signing).flatMap((name) =>
      secretsOfKey(`signing ${name}`, readFileSync(join(signing, name), "utf8")),
    ),
    { name: "API key", bytes: Buffer.from(readFileSync(join(home, "keys/api_key"), "utf8").trim()) },
  ];
  expect(await found(files, secrets)).toEqual([]);
  await client.session.discard(sandbox.id);
});
