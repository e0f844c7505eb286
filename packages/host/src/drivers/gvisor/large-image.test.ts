import { mkdtemp, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { isReadInBackground } from "./large-image.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "cloche-image-"));
});
afterEach(() => rm(dir, { recursive: true }));

describe("isReadInBackground", () => {
  it.each([
    ["a large image", 512 * 1024 * 1024, true],
    ["a smaller one", 512 * 1024 * 1024 - 1, false],
  ])("%s", async (_, size, inBackground) => {
    await writeFile(join(dir, "pages.img"), "");
    await truncate(join(dir, "pages.img"), size);
    expect(await isReadInBackground(dir)).toBe(inBackground);
  });

  it("an image without pages, which runsc refuses", async () => {
    expect(await isReadInBackground(dir)).toBe(false);
  });
});
