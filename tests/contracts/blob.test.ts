import { mkdtemp, mkdir, readdir, rm, utimes, writeFile } from "node:fs/promises";
import { createServer, request, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import S3rver from "s3rver";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { s3Credentials } from "../../packages/host/src/blob/s3-credentials.ts";
import { openS3Store, parseS3Address } from "../../packages/host/src/blob/s3-store.ts";
import { blobStoreContract } from "./blob.ts";

let folder = "";
let serverPort = 0;
let directory: BlobStore;
let s3: BlobStore;
let server: { close(): Promise<void> };

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "cloche-blob-"));
  directory = await openDirectoryStore(join(folder, "files"));
  const s3rver = new S3rver({
    address: "127.0.0.1",
    port: 0,
    silent: true,
    directory: join(folder, "s3"),
    configureBuckets: [{ name: "checkpoints", configs: [] }],
  });
  const { port } = await s3rver.run();
  serverPort = port;
  server = s3rver;
  const keys = { AWS_ACCESS_KEY_ID: "S3RVER", AWS_SECRET_ACCESS_KEY: "S3RVER" };
  s3 = openS3Store(parseS3Address(`s3://checkpoints/team/blobs?endpoint=http://127.0.0.1:${port}`, keys));
});
afterAll(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

blobStoreContract("directory", () => directory);
// s3rver writes objects in place; S3 itself replaces them in one step, and we never write one key twice.
blobStoreContract("S3", () => s3, { atomicReplace: false });

describe("directory store", () => {
  it("sweeps what a killed write left a day ago, not a write under way, and lists neither", async () => {
    const home = join(folder, "swept");
    await mkdir(join(home, "packs"), { recursive: true });
    await writeFile(join(home, "packs", "x.0011.part"), "half");
    await writeFile(join(home, "packs", "y.0022.part"), "half");
    const yesterday = new Date(Date.now() - 25 * 3_600_000);
    await utimes(join(home, "packs", "x.0011.part"), yesterday, yesterday);
    const store = await openDirectoryStore(home);
    expect(await store.list("")).toEqual([]);
    expect(await readdir(join(home, "packs"))).toEqual(["y.0022.part"]);
  });
});

describe("S3 credentials", () => {
  /** What a request told of its credentials, as it went to the server. */
  const sent: { key: string; token: string; signs: boolean }[] = [];
  let proxy: Server;
  let url = "";
  beforeAll(async () => {
    proxy = createServer((from, to) => {
      const { authorization = "", "x-amz-security-token": token = "" } = from.headers;
      const key = /Credential=([^/]+)/.exec(authorization)?.[1] ?? "";
      sent.push({
        key,
        token: String(token),
        signs: /SignedHeaders=[^,]*x-amz-security-token/.test(authorization),
      });
      const { method, headers, url: path } = from;
      const on = request({ port: serverPort, host: "127.0.0.1", method, headers, path }, (answer) => {
        to.writeHead(answer.statusCode ?? 500, answer.headers);
        answer.pipe(to);
      });
      from.pipe(on);
    });
    await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    url = `s3://checkpoints/tokens?endpoint=http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  });
  afterAll(() => {
    proxy.closeAllConnections();
    proxy.close();
  });

  it("sends and signs a session token, and none where there is none", async () => {
    const keys = { AWS_ACCESS_KEY_ID: "S3RVER", AWS_SECRET_ACCESS_KEY: "S3RVER" };
    const temporary = openS3Store(parseS3Address(url, { ...keys, AWS_SESSION_TOKEN: "token/+=1" }));
    await temporary.put("a/b", Buffer.from("x"));
    expect(await temporary.list("")).toMatchObject([{ key: "a/b", bytes: 1 }]);
    const told = { key: "S3RVER", token: "token/+=1", signs: true };
    expect(sent.splice(0)).toEqual([told, told]);
    await openS3Store(parseS3Address(url, keys)).delete("a/b");
    expect(sent.splice(0)).toEqual([{ key: "S3RVER", token: "", signs: false }]);
  });

  it("reads a profile of a file, and reads it again once it is renewed", async () => {
    const file = join(folder, "credentials");
    const profile = (token: string): string =>
      `[other]\naws_access_key_id = wrong\n[cloche]\naws_access_key_id = S3RVER\naws_secret_access_key=S3RVER\naws_session_token = ${token}\n`;
    await writeFile(file, profile("first"));
    let nowMs = 0;
    const env = { AWS_SHARED_CREDENTIALS_FILE: file, AWS_PROFILE: "cloche" };
    const credentials = s3Credentials(env, () => nowMs);
    const store = openS3Store({ ...parseS3Address(url, env), credentials });
    const tokens: string[] = [];
    for (const text of [profile("second"), "half of a fi", profile("third")]) {
      await store.list("");
      tokens.push(sent.splice(0)[0]?.token ?? "");
      await writeFile(file, text);
      nowMs += 5_000;
    }
    await store.list("");
    expect([...tokens, sent.splice(0)[0]?.token]).toEqual(["first", "second", "second", "third"]);
  });

  it("says what a file lacks", async () => {
    const file = join(folder, "poor");
    await writeFile(file, "[default]\naws_access_key_id = A\n");
    expect(() => parseS3Address("s3://bucket", { AWS_SHARED_CREDENTIALS_FILE: file })).toThrow(
      /poor .*aws_secret_access_key.*\[default\]/,
    );
  });
});

describe("S3 address", () => {
  it("says which credentials are missing", () => {
    expect(() => parseS3Address("s3://bucket", {})).toThrow("AWS_ACCESS_KEY_ID");
  });
});
