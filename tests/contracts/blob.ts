/** What every blob store must do. */
import { describe, expect, it } from "vitest";
import type { BlobStore } from "../../packages/host/src/blob/blob-store.ts";

/** `atomicReplace: false`: a test server that is not, though the real one is. */
export function blobStoreContract(
  name: string,
  store: () => BlobStore,
  { atomicReplace = true }: { atomicReplace?: boolean } = {},
): void {
  const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
  const text = (data: Uint8Array | undefined): string | undefined =>
    data === undefined ? undefined : new TextDecoder().decode(data);

  describe(`blob store: ${name}`, () => {
    it("answers undefined for what was never put, and deletes it without complaint", async () => {
      expect(await store().get("a/none")).toBeUndefined();
      expect(await store().get("a/none", { offset: 0, length: 4 })).toBeUndefined();
      await store().delete("a/none");
    });

    it("gives back what was put, whole and in ranges, and replaces it", async () => {
      await store().put("b/one.bin", bytes("0123456789"));
      expect(text(await store().get("b/one.bin"))).toBe("0123456789");
      expect(text(await store().get("b/one.bin", { offset: 3, length: 4 }))).toBe("3456");
      expect(text(await store().get("b/one.bin", { offset: 8, length: 10 }))).toBe("89");
      expect((await store().get("b/one.bin", { offset: 20, length: 5 }))?.length).toBe(0);
      await store().put("b/one.bin", bytes("new"));
      expect(text(await store().get("b/one.bin"))).toBe("new");
    });

    it("keeps an empty blob and every byte value", async () => {
      await store().put("c/empty", new Uint8Array());
      expect((await store().get("c/empty"))?.length).toBe(0);
      const all = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256);
      await store().put("c/all", all);
      expect(Buffer.from((await store().get("c/all")) ?? []).equals(Buffer.from(all))).toBe(true);
    });

    it("lists by prefix, sorted, with sizes, and no longer after deletion", async () => {
      for (const key of ["d/b", "d/a/x", "d/a/y", "e/z"]) await store().put(key, bytes(key));
      const listed = await store().list("d/");
      expect(listed.map(({ key, bytes: size }) => [key, size])).toEqual([
        ["d/a/x", 5],
        ["d/a/y", 5],
        ["d/b", 3],
      ]);
      for (const { modifiedAtMs } of listed) expect(Math.abs(modifiedAtMs - Date.now())).toBeLessThan(60_000);
      await store().delete("d/a/x");
      expect((await store().list("d/")).map((entry) => entry.key)).toEqual(["d/a/y", "d/b"]);
      expect(await store().list("nothing/")).toEqual([]);
    });

    it.each(["../x", "a/../b", "/a", "a//b", "a/", "A", ""])("refuses the key %j", async (key) => {
      await expect(store().put(key, bytes("x"))).rejects.toThrow("unusable blob key");
    });

    if (!atomicReplace) return;
    it("readers of a blob that is replaced all the while see one whole version", async () => {
      const version = (letter: string): Uint8Array => bytes(letter.repeat(50_000));
      await store().put("f/swap", version("a"));
      let writing = true;
      const writer = (async () => {
        for (let round = 0; round < 20; round += 1)
          await store().put("f/swap", version(round % 2 ? "a" : "b"));
        writing = false;
      })();
      while (writing) {
        const seen = text(await store().get("f/swap")) ?? "";
        expect(seen === "a".repeat(50_000) || seen === "b".repeat(50_000)).toBe(true);
      }
      await writer;
    });
  });
}
