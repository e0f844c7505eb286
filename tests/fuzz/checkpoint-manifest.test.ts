// Manifests of checkpoints as storage might hold them: changed and then sealed again, so that the checksum does not catch it.
// What is read is sound or refused as damaged, whatever was written.
import { createHash, randomBytes } from "node:crypto";
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  decodeManifest,
  encodeManifest,
  type Manifest,
  type ManifestDraft,
  manifestCaps,
  ManifestError,
} from "../../packages/host/src/checkpoint/manifest.ts";
import { allChunks, sampleHeader } from "../../packages/host/src/testing/sample-checkpoint.ts";
import { patience, plan } from "./seed.ts";

const MIB = 1024 * 1024;
const DIGEST_BYTES = 32;
const manifest: ManifestDraft = {
  header: sampleHeader({ size_bytes: 4_096, disk_bytes: 4 * MIB, disk_mb: 4, running_services: ["web"] }),
  packs: [
    { id: "pack-aaaaaaaaaaaaaaaaaaaa", bytes: 3 * MIB },
    { id: "pack-bbbbbbbbbbbbbbbbbbbb", bytes: MIB },
  ],
  chunks: Array.from({ length: 16 }, (_, index) =>
    index % 5 === 0
      ? undefined
      : {
          pack: index % 2,
          offset: 8 + index * 1_000,
          storedBytes: 1_000,
          sha256: createHash("sha256").update(`${index}`).digest(),
        },
  ),
};

const seal = (body: Buffer): Buffer => Buffer.concat([body, createHash("sha256").update(body).digest()]);

/** Undefined: refused as damaged. Anything else that is thrown fails the test. */
async function read(bytes: Uint8Array): Promise<Manifest | undefined> {
  try {
    return await decodeManifest(bytes);
  } catch (error) {
    expect(error).toBeInstanceOf(ManifestError);
    return undefined;
  }
}

async function expectSound({ header, packs, chunks }: Manifest): Promise<void> {
  expect(header.disk_bytes).toBeLessThanOrEqual(manifestCaps.diskBytes);
  expect(packs.length).toBeLessThanOrEqual(manifestCaps.packs);
  for (const { id } of packs) expect(id).toMatch(/^pack-[a-z0-9]{20}$/);
  for (const chunk of await allChunks(chunks())) {
    if (chunk === undefined) continue;
    expect(chunk.storedBytes).toBeLessThanOrEqual(manifestCaps.storedChunkBytes);
    expect(chunk.offset + chunk.storedBytes).toBeLessThanOrEqual(packs[chunk.pack]?.bytes ?? 0);
  }
}

test("a sealed manifest with changed bytes is sound or refused", { timeout: patience(120_000) }, async () => {
  const good = await encodeManifest(manifest);
  const seen = await decodeManifest(good);
  const { header, packs } = manifest;
  expect(seen).toMatchObject({ header, packs, chunkCount: manifest.chunks.length });
  expect(await allChunks(seen.chunks())).toEqual(manifest.chunks);
  const body = good.subarray(0, -DIGEST_BYTES);
  const edit = fc.tuple(fc.nat(body.length), fc.nat(8), fc.uint8Array({ maxLength: 8 }));
  await fc.assert(
    fc.asyncProperty(fc.array(edit, { minLength: 1, maxLength: 4 }), async (edits) => {
      let bytes = Buffer.from(body);
      for (const [at, cut, inserted] of edits)
        bytes = Buffer.concat([bytes.subarray(0, at), Buffer.from(inserted), bytes.subarray(at + cut)]);
      const seen = await read(seal(bytes));
      if (seen) await expectSound(seen);
    }),
    plan(3_000),
  );
});

test("a header that claims anything is sound or refused", { timeout: patience(120_000) }, async () => {
  const value = fc.oneof(
    fc.constantFrom<unknown>(
      null,
      -1,
      0,
      0.5,
      2 ** 40,
      2 ** 53,
      1e300,
      "",
      "../../etc",
      [],
      {},
      [null],
      "a".repeat(5_000),
    ),
    fc.jsonValue(),
  );
  const names = [
    "id",
    "name",
    "team_id",
    "sandbox_id",
    "created_at",
    "size_bytes",
    "runtime",
    "disk_bytes",
    "disk_mb",
    "running_services",
    "packs",
    "__proto__",
  ];
  const good = await encodeManifest(manifest);
  const headerBytes = good.readUInt32LE(12);
  const header = JSON.parse(good.subarray(20, 20 + headerBytes).toString()) as object;
  await fc.assert(
    fc.asyncProperty(
      fc.dictionary(fc.constantFrom(...names), value, { minKeys: 1, maxKeys: 3 }),
      async (changes) => {
        const text = Buffer.from(JSON.stringify({ ...header, ...changes }));
        const prefix = Buffer.from(good.subarray(0, 20));
        prefix.writeUInt32LE(text.length, 12);
        const seen = await read(
          seal(Buffer.concat([prefix, text, good.subarray(20 + headerBytes, -DIGEST_BYTES)])),
        );
        if (seen) await expectSound(seen);
      },
    ),
    plan(2_000),
  );
});

test("bytes that are no manifest are refused", async () => {
  await fc.assert(
    fc.asyncProperty(fc.nat(400), async (size) => {
      expect(await read(randomBytes(size))).toBeUndefined();
    }),
    plan(300),
  );
});
