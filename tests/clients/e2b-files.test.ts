// Files by E2B's own JavaScript client, from npm, against the E2B-compatible endpoint (docs/e2b.md); the rest: e2b-javascript.test.ts.
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { FileNotFoundError, Sandbox } from "e2b";
import { eventually } from "../fixtures/client.ts";
import { TestService } from "../fixtures/service.ts";

const { home, env } = inject("service");
let sandbox: Sandbox;

beforeAll(async () => {
  const { e2b } = (await TestService.running(home, env)).status;
  const { api_url: apiUrl = "", sandbox_url: sandboxUrl = "", api_key: apiKey = "" } = e2b ?? {};
  sandbox = await Sandbox.create({ apiUrl, sandboxUrl, apiKey, timeoutMs: 600_000 });
});
afterAll(() => sandbox.kill());

test("files are written, read, listed, moved and removed where the user's home is", async () => {
  const { stdout: owner } = await sandbox.commands.run("whoami");
  const info = await sandbox.files.write("notes/one.txt", "first");
  expect(info).toMatchObject({ name: "one.txt", type: "file" });
  expect(info.path).toMatch(/^\/(home\/user|root)\/notes\/one\.txt$/);
  expect(await sandbox.files.getInfo("notes")).toMatchObject({
    type: "dir",
    owner: owner.trim(),
    permissions: "drwxr-xr-x",
  });
  expect(await sandbox.files.getInfo("notes/one.txt")).toMatchObject({
    size: 5,
    mode: 0o644,
    owner: owner.trim(),
  });
  const bytes = new Uint8Array(3_000_000).map((_none, at) => at % 251);
  await sandbox.files.write([
    { path: "notes/two.bin", data: bytes.buffer },
    { path: "/srv/three.txt", data: new Blob(["third"]).stream() },
    { path: "notes/ü ñ.txt", data: "named" },
  ]);
  expect(Buffer.from(await sandbox.files.read("notes/two.bin", { format: "bytes" })).equals(bytes)).toBe(
    true,
  );
  expect(await sandbox.files.read("/srv/three.txt")).toBe("third");
  await sandbox.files.write("zipped.txt", "packed".repeat(1_000), { gzip: true });
  expect(await sandbox.files.read("zipped.txt", { gzip: true })).toBe("packed".repeat(1_000));
  expect((await sandbox.files.list("notes")).map(({ name }) => name).sort()).toEqual([
    "one.txt",
    "two.bin",
    "ü ñ.txt",
  ]);
  expect(await sandbox.files.makeDir("notes/deep/er")).toBe(true);
  expect(await sandbox.files.makeDir("notes/deep/er")).toBe(false);
  expect((await sandbox.files.list("notes", { depth: 3 })).map(({ path }) => path)).toContain(
    `${info.path.replace("one.txt", "deep/er")}`,
  );
  const moved = await sandbox.files.rename("notes/one.txt", "moved/here/one.txt");
  expect(await sandbox.files.read(moved.path)).toBe("first");
  expect([await sandbox.files.exists("notes/one.txt"), await sandbox.files.exists("moved")]).toEqual([
    false,
    true,
  ]);
  await sandbox.files.remove("moved");
  await sandbox.files.remove("moved");
  expect(await sandbox.files.exists("moved")).toBe(false);
  await sandbox.commands.run("ln -s notes/two.bin link");
  expect(await sandbox.files.getInfo("link")).toMatchObject({
    type: "file",
    symlinkTarget: info.path.replace("one.txt", "two.bin"),
  });
});

test("metadata goes with a file until it is written anew", async () => {
  const metadata = { author: "mish", "two-words": "what it is for" };
  for (const useOctetStream of [false, true])
    expect(await sandbox.files.write("told/one", "1", { metadata, useOctetStream })).toMatchObject({
      metadata,
    });
  expect(await sandbox.files.getInfo("told/one")).toMatchObject({ metadata });
  expect(await sandbox.files.list("told")).toMatchObject([{ name: "one", metadata }]);
  expect(await sandbox.files.rename("told/one", "told/two")).toMatchObject({ metadata });
  const { stdout } = await sandbox.commands.run(
    "cd told; python3 -c \"import os; print(os.getxattr('two', 'user.e2b.author')); os.setxattr('two', 'user.e2b.author', b'else'); os.setxattr('two', 'user.other', b'')\"",
  );
  expect(stdout).toBe("b'mish'\n");
  expect((await sandbox.files.getInfo("told/two")).metadata).toEqual({ ...metadata, author: "else" });
  expect((await sandbox.files.write("told/two", "2")).metadata).toBeUndefined();
  expect((await sandbox.files.getInfo("told/two")).metadata).toBeUndefined();
  const large = sandbox.files.write("told/three", "3", { metadata: { large: "x".repeat(4_000) } });
  await expect(large).rejects.toThrow("x-file-attributes");
  expect(await sandbox.files.exists("told/three")).toBe(false);
});

test("a directory's changes are told while it is watched", async () => {
  await sandbox.files.makeDir("watched/below");
  const seen: string[] = [];
  const entries: unknown[] = [];
  const watch = await sandbox.files.watchDir(
    "watched",
    ({ type, name, entry }) => {
      seen.push(`${type} ${name}`);
      if (name === "below/kept.txt") entries.push([entry?.name, entry?.type]);
    },
    { recursive: true, includeEntry: true },
  );
  await sandbox.files.write("watched/below/new.txt", "1");
  await sandbox.files.rename("watched/below/new.txt", "watched/old.txt");
  await sandbox.files.remove("watched/old.txt");
  const wanted = [
    "create below/new.txt",
    "write below/new.txt",
    "rename below/new.txt",
    "create old.txt",
    "remove old.txt",
  ];
  await eventually(
    () => seen,
    () => wanted.every((one) => seen.includes(one)),
  );
  expect(seen).toEqual(expect.arrayContaining(wanted));
  await sandbox.files.write("watched/below/kept.txt", "1");
  expect(await eventually(() => entries.at(-1), Boolean)).toEqual(["kept.txt", "file"]);
  await watch.stop();
  await expect(sandbox.files.watchDir("not-there", () => undefined)).rejects.toThrow(FileNotFoundError);
});

test("a signed URL reads or writes its one file, without a token, until it expires", async () => {
  await sandbox.files.write("signed.txt", "for who has the link");
  const url = await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: 60 });
  expect(await (await fetch(url)).text()).toBe("for who has the link");
  const form = new FormData();
  form.append("file", "by link");
  const upload = await sandbox.uploadUrl("uploaded.txt");
  expect(await (await fetch(upload, { method: "POST", body: form })).json()).toMatchObject([
    { name: "uploaded.txt", type: "file" },
  ]);
  expect(await sandbox.files.read("uploaded.txt")).toBe("by link");
  const refused = async (changed: string, method = "GET"): Promise<[number, string]> => {
    const answer = await fetch(changed, { method, ...(method === "POST" && { body: form }) });
    return [answer.status, ((await answer.json()) as { message: string }).message];
  };
  expect(await refused(url.replace("signed.txt", "uploaded.txt"))).toEqual([401, "invalid signature"]);
  expect(await refused(url, "POST")).toEqual([401, "invalid signature"]);
  expect(await refused(url.replace(/signature_expiration=(\d+)/, "signature_expiration=9$1"))).toEqual([
    401,
    "invalid signature",
  ]);
  const expired = await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: -10 });
  expect(await refused(expired)).toEqual([401, "signature is already expired"]);
});
