import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { takeArtifacts } from "./take-artifacts.ts";

let dir: string;
let from: string;
let cache: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "cloche-take-"));
  from = join(dir, "from");
  cache = join(dir, "cache");
  mkdirSync(join(from, "keeper-1"), { recursive: true });
  writeFileSync(join(from, "keeper-1/keeper"), "new");
  writeFileSync(join(from, "rootfs-1.made-from.json"), "{}");
});
afterEach(() => rmSync(dir, { recursive: true }));

const take = (): Promise<string[]> => takeArtifacts(from, cache, () => undefined);

describe("artifacts of an image", () => {
  it("are copied into the cache once", async () => {
    expect(await take()).toEqual(["keeper-1", "rootfs-1.made-from.json"]);
    expect(readFileSync(join(cache, "keeper-1/keeper"), "utf8")).toBe("new");
    expect(await take()).toEqual([]);
  });

  it("replace nothing: machines of before run from it", async () => {
    mkdirSync(join(cache, "keeper-1"), { recursive: true });
    writeFileSync(join(cache, "keeper-1/keeper"), "in use");
    expect(await take()).toEqual(["rootfs-1.made-from.json"]);
    expect(readFileSync(join(cache, "keeper-1/keeper"), "utf8")).toBe("in use");
  });

  it("leave no half of a copy that was cut off", async () => {
    mkdirSync(join(cache, ".tmp-take-keeper-1"), { recursive: true });
    writeFileSync(join(cache, ".tmp-take-keeper-1/half"), "");
    await take();
    expect(existsSync(join(cache, "keeper-1/half"))).toBe(false);
    expect(readdirSync(cache).filter((name) => name.startsWith(".tmp"))).toEqual([]);
  });
});
