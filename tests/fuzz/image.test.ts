// Images that a registry might send: manifests, configs and layers with changed bytes under digests that are right. A pull either
// unpacks into its own folder or says what is wrong with the image; nothing outside that folder changes.
import { lstatSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync, zstdCompressSync } from "node:zlib";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ImageError } from "../../packages/agent/src/oci-images/image-error.ts";
import { parseConfig, parseManifest } from "../../packages/agent/src/oci-images/manifest.ts";
import { pullImage } from "../../packages/agent/src/oci-images/image-puller.ts";
import { MadeImage, makeTar } from "../../packages/agent/src/testing/image-builder.ts";
import { patience, plan } from "./seed.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-image-fuzz-"));
  writeFileSync(join(folder, "precious"), "precious");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const owner = { uid: 0, gid: 0 };
const path = fc.oneof(
  fc.constantFrom(
    "a",
    "a/b",
    "dir",
    "dir/file",
    "../precious",
    "/precious",
    "dir/../../precious",
    "dir/link/x",
    "link",
    "link/precious",
    ".wh.a",
    "dir/.wh..wh..opq",
    "",
    ".",
    "..",
    "//x",
    "a".repeat(300),
  ),
  fc.string({ maxLength: 12 }),
);
/** Of a pax record: what no file system can hold, and what is none. */
const value = fc.oneof(
  path,
  fc.constantFrom(
    "0",
    "-1",
    "1.5",
    "-1.5",
    "1e400",
    "4294967295",
    "9007199254740993",
    "-99999999999",
    "\0",
    "x\0y",
  ),
  fc.constantFrom("a/".repeat(2_100), "d/".repeat(1_500), `link/${"d/".repeat(1_500)}`, "../".repeat(1_000)),
);
const entry = fc.record({
  path,
  type: fc.constantFrom("0", "1", "2", "3", "4", "5", "6", "7", "x", "g", "L", "K", "S", "V"),
  link: fc.oneof(path, fc.constantFrom("../..", "/", "../../precious")),
  body: fc.string({ maxLength: 60 }),
  mode: fc.nat(0o7777),
  uid: fc.constant(owner.uid),
  gid: fc.constant(owner.gid),
  pax: fc.oneof(
    { weight: 3, arbitrary: fc.constant({}) },
    fc.dictionary(fc.constantFrom("path", "linkpath", "size", "uid", "gid", "mtime", "other"), value, {
      maxKeys: 3,
    }),
  ),
});
const edit = fc.tuple(fc.nat(4_000), fc.nat(16), fc.uint8Array({ maxLength: 16 }));
const changed = (bytes: Buffer, edits: readonly [number, number, Uint8Array][]): Buffer =>
  edits.reduce((all: Buffer, [at, cut, inserted]) => {
    const place = at % (all.length + 1);
    return Buffer.concat([all.subarray(0, place), Buffer.from(inserted), all.subarray(place + cut)]);
  }, bytes);

test("layers of any entries, whole or damaged, stay in their folder", {
  timeout: patience(200_000),
}, async () => {
  let unpacked = 0;
  const layer = fc.tuple(
    fc.array(entry, { maxLength: 6 }),
    fc.oneof(
      { weight: 2, arbitrary: fc.constant([]) },
      { weight: 1, arbitrary: fc.array(edit, { maxLength: 3 }) },
    ),
  );
  const compress = fc.constantFrom(gzipSync, zstdCompressSync, (tar: Buffer) => tar);
  await fc.assert(
    fc.asyncProperty(fc.array(layer, { minLength: 1, maxLength: 3 }), compress, async (layers, pack) => {
      const tars = layers.map(([entries, edits]) => changed(makeTar(entries as never), edits));
      const rootFolder = join(folder, "rootfs");
      mkdirSync(join(folder, "images"), { recursive: true });
      try {
        await pullImage({
          source: new MadeImage(tars, {}, pack),
          digest: undefined,
          architecture: "amd64",
          imagesFolder: join(folder, "images"),
          rootFolder,
          note: () => undefined,
          progress: () => undefined,
          pause: async () => undefined,
        });
        unpacked += 1;
      } catch (error) {
        expect(error, String((error as Error).stack)).toBeInstanceOf(ImageError);
      }
      expect(readFileSync(join(folder, "precious"), "utf8")).toBe("precious");
      expect(readdirSync(folder).filter((name) => !["precious", "images", "rootfs"].includes(name))).toEqual(
        [],
      );
      for (const name of lstatSync(rootFolder, { throwIfNoEntry: false }) ? readdirSync(rootFolder) : [])
        expect(name).not.toMatch(/^\.wh\./);
      rmSync(rootFolder, { recursive: true, force: true });
      rmSync(join(folder, "images"), { recursive: true, force: true });
    }),
    plan(500),
  );
  expect(unpacked, "some are good, or this proves nothing").toBeGreaterThan(10);
});

test("manifests and configs of any JSON are read or refused", { timeout: patience(120_000) }, async () => {
  const made = new MadeImage([makeTar([{ path: "a", body: "a" }] as never)]);
  const config = [...made.blobs.values()].find((blob) => blob.includes("rootfs")) ?? Buffer.alloc(0);
  const value = fc.oneof(
    fc.constantFrom<unknown>(null, -1, 1e300, "", "sha256:", "sha256:".padEnd(71, "a"), [], {}, [null], [[]]),
    fc.jsonValue(),
  );
  const names = [
    "schemaVersion",
    "mediaType",
    "config",
    "layers",
    "manifests",
    "digest",
    "size",
    "rootfs",
    "diff_ids",
    "Env",
    "Entrypoint",
    "User",
    "__proto__",
  ];
  const mutate = (bytes: Buffer) =>
    fc.oneof(
      fc.array(edit, { minLength: 1, maxLength: 3 }).map((edits) => changed(bytes, edits)),
      fc
        .dictionary(fc.constantFrom(...names), value, { minKeys: 1, maxKeys: 3 })
        .map((changes) =>
          Buffer.from(JSON.stringify({ ...(JSON.parse(bytes.toString()) as object), ...changes })),
        ),
    );
  const reads: [(bytes: Buffer) => unknown, Buffer][] = [
    [parseManifest, made.rootBytes],
    [parseConfig, config],
  ];
  for (const [parse, good] of reads) {
    parse(good);
    await fc.assert(
      fc.property(mutate(good), (bytes) => {
        try {
          parse(bytes);
        } catch (error) {
          expect(error).toBeInstanceOf(ImageError);
        }
      }),
      plan(2_000),
    );
  }
});
