import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { randomBytes } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync, zstdCompressSync } from "node:zlib";
import type { PullProgress } from "@cloche/protocol";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { MadeImage, type MadeEntry, makeTar, sha256 } from "../testing/image-builder.ts";
import { pullImage } from "./image-puller.ts";
import type { ImageSource } from "./source.ts";
import type { PulledImage } from "./pull-protocol.ts";

const root = process.getuid?.() === 0;
let folder: string;
const notes: string[] = [];
const progress: PullProgress[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-image-"));
  notes.length = 0;
  progress.length = 0;
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function pulled(
  source: ImageSource,
  changes: { digest?: string; architecture?: string; into?: string } = {},
): Promise<PulledImage> {
  mkdirSync(join(folder, "images"), { recursive: true });
  return pullImage({
    source,
    digest: changes.digest,
    architecture: changes.architecture ?? "amd64",
    imagesFolder: join(folder, "images"),
    rootFolder: join(folder, changes.into ?? "rootfs"),
    note: (text) => notes.push(text),
    progress: (now) => progress.push(now),
    pause: async () => undefined,
  });
}
const own = root ? {} : { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };
const file = (path: string, body = path, more: Partial<MadeEntry> = {}): MadeEntry => ({
  path,
  body,
  ...own,
  ...more,
});
const directory = (path: string, more: Partial<MadeEntry> = {}): MadeEntry => ({
  path,
  type: "5",
  mode: 0o755,
  ...own,
  ...more,
});
const symlink = (path: string, link: string): MadeEntry => ({ path, type: "2", link, ...own });
const hardlink = (path: string, link: string): MadeEntry => ({ path, type: "1", link, ...own });
const at = (path: string): string => join(folder, "rootfs", path);

/** Every path of the root with what it is: `/` for a directory, `-> x` for a link, else the content. */
function listing(into = "rootfs"): Record<string, string> {
  const found: Record<string, string> = {};
  const visit = (path: string): void => {
    for (const name of readdirSync(join(folder, into, path)).sort()) {
      const one = path === "" ? name : `${path}/${name}`;
      const full = join(folder, into, one);
      const stat = lstatSync(full);
      if (stat.isDirectory()) {
        found[one] = "/";
        visit(one);
      } else found[one] = stat.isSymbolicLink() ? `-> ${readlinkSync(full)}` : readFileSync(full, "utf8");
    }
  };
  visit("");
  return found;
}

describe("pullImage", () => {
  it("unpacks what the layers amount to", async () => {
    const image = new MadeImage([
      makeTar([
        directory("./"),
        directory("etc/"),
        file("etc/a"),
        file("etc/b"),
        directory("opt/"),
        file("opt/x"),
        file("opt/y"),
        directory("gone/"),
        file("gone/z"),
        file("replaced"),
        directory("dir/"),
        file("dir/in"),
      ]),
      makeTar([
        file("etc/.wh.a", ""),
        directory("opt/"),
        file("opt/new"),
        file("opt/.wh..wh..opq", ""),
        file(".wh.gone", ""),
        directory("replaced/"),
        file("replaced/inner"),
        file("dir", "now a file"),
        file("not-there/.wh.x", ""),
      ]),
    ]);
    await pulled(image);
    expect(listing()).toEqual({
      dir: "now a file",
      etc: "/",
      "etc/b": "etc/b",
      opt: "/",
      "opt/new": "opt/new",
      replaced: "/",
      "replaced/inner": "replaced/inner",
    });
  });

  it("keeps modes, times, owners, long names, links and empty files", async () => {
    const long = `${"d".repeat(90)}/${"n".repeat(200)}`;
    const image = new MadeImage([
      makeTar([
        directory("bin/", { mode: 0o750, mtime: 1_000 }),
        file("bin/tool", "x".repeat(100_000), { mode: 0o4755, mtime: 2_000 }),
        hardlink("bin/alias", "bin/tool"),
        symlink("sh", "/bin/tool"),
        file("empty", ""),
        file(long, "long"),
        file("sp\xe9cial", "latin"),
      ]),
    ]);
    await pulled(image);
    expect(statSync(at("bin/tool"))).toMatchObject({ size: 100_000, nlink: 2, mtimeMs: 2_000_000 });
    expect((statSync(at("bin/tool")).mode & 0o7777).toString(8)).toBe("4755");
    expect(statSync(at("bin"))).toMatchObject({ mtimeMs: 1_000_000 });
    expect(statSync(at("bin/alias")).ino).toBe(statSync(at("bin/tool")).ino);
    expect(readlinkSync(at("sh"))).toBe("/bin/tool");
    expect(readFileSync(at(long), "utf8")).toBe("long");
    expect(readdirSync(at(""), { encoding: "buffer" }).some((name) => name.includes(0xe9))).toBe(true);
  });

  it("keeps the content of a hard link whose first name a later layer took away", async () => {
    const image = new MadeImage([
      makeTar([file("a", "content"), hardlink("b", "a"), hardlink("c", "./b")]),
      makeTar([file(".wh.a", ""), file("b", "other"), hardlink("d", "c")]),
    ]);
    await pulled(image);
    expect(listing()).toEqual({ b: "other", c: "content", d: "content" });
  });

  it("follows links on the way to an entry, but only within the root", async () => {
    const image = new MadeImage([
      makeTar([
        directory("usr/lib/"),
        symlink("lib", "usr/lib"),
        symlink("up", "../../../etc"),
        symlink("abs", "/srv"),
      ]),
      makeTar([file("lib/x"), file("up/passwd", "ours"), file("abs/y")]),
    ]);
    await pulled(image);
    expect(listing()).toMatchObject({
      "usr/lib/x": "lib/x",
      "etc/passwd": "ours",
      "srv/y": "abs/y",
      lib: "-> usr/lib",
    });
    expect(existsSync(join(folder, "etc"))).toBe(false);
  });

  it.each([
    ["a path that climbs", [file("../out")]],
    ["a path that climbs within", [file("a/../../out")]],
    ["a hard link to the outside", [hardlink("x", "../../../etc/passwd")]],
    ["a hard link to nothing", [hardlink("x", "etc/passwd")]],
    ["a hard link to a directory", [directory("d/"), hardlink("x", "d")]],
    ["a loop of links", [symlink("a", "b"), symlink("b", "a"), file("a/x")]],
    ["a name too long", [file(`${"n".repeat(256)}`)]],
    ["a sparse file", [{ path: "s", type: "S" }]],
    ["a link to nothing", [symlink("x", "")]],
    ["a link to a path that is too long", [symlink("x", "a/".repeat(2_100))]],
    ["a link to a path of a million names", [symlink("x", "a/".repeat(500_000)), file("x/y")]],
    ["a link with a NUL", [{ ...symlink("x", ""), pax: { linkpath: "a\0b" } }]],
    ["a path with a NUL", [file("x", "", { pax: { path: "a\0b" } })]],
    ["a path that is too long", [file("a/".repeat(2_100))]],
    ["an owner that stands for none", [file("x", "", { pax: { uid: "4294967295" } })]],
    ["a group beyond all", [directory("x", { pax: { gid: "9007199254740991" } })]],
    ["an owner below zero", [{ ...symlink("x", "y"), raw: { at: 108, bytes: Buffer.alloc(8, 0xff) } }]],
    ["a size below zero", [file("x", "", { raw: { at: 124, bytes: Buffer.alloc(12, 0xff) } })]],
    [
      "a size beyond all",
      [file("x", "", { raw: { at: 124, bytes: Buffer.from("80ffffffffffffffffffffff", "hex") } })],
    ],
    ["a size of terabytes", [file("x", "", { pax: { size: "9000000000000" } })]],
    [
      "a time beyond all",
      [file("x", "", { raw: { at: 136, bytes: Buffer.from("80ffffffffffffffffffffff", "hex") } })],
    ],
    ["a time that is none", [file("x", "", { pax: { mtime: "1e400" } })]],
    [
      "a file of too many names",
      [file("x"), ...Array.from({ length: 65_000 }, (_, n) => hardlink(`n${n}`, "x"))],
    ],
  ])("refuses %s and leaves nothing outside", async (_what, entries) => {
    await expect(pulled(new MadeImage([makeTar(entries)]))).rejects.toMatchObject({ name: "ImageError" });
    expect(readdirSync(folder).filter((name) => name !== "images" && name !== "rootfs")).toEqual([]);
  });

  it("refuses a tree that links make deeper than a path, before any of it is made", async () => {
    const deep = "d/".repeat(1_500);
    const image = new MadeImage([makeTar([symlink("l", deep), directory(deep), file(`l/${deep}x`)])]);
    await expect(pulled(image)).rejects.toThrow(/path that is too long/);
    expect(existsSync(at(""))).toBe(false);
  });

  it("keeps times before 1970 and with a fraction; those that no file can have become the nearest", async () => {
    const times: [string, bigint][] = [
      ["-1.25", -1_250_000_000n],
      ["1700000000.5", 1_700_000_000_500_000_000n],
      ["-7000000000.5", -(2n ** 31n) * 1_000_000_000n],
      ["99999999999999999", 9_223_372_035_000_000_000n],
    ];
    const entries = times.flatMap(([mtime], index) => [
      file(`f${index}`, "", { pax: { mtime } }),
      directory(`d${index}`, { pax: { mtime } }),
      { ...symlink(`l${index}`, "x"), pax: { mtime } },
    ]);
    await pulled(new MadeImage([makeTar(entries)]));
    for (const [index, [, mtimeNs]] of times.entries()) {
      for (const kind of "fdl")
        expect(lstatSync(at(`${kind}${index}`), { bigint: true }).mtimeNs).toBe(mtimeNs);
    }
  });

  it("takes a pax value that is empty for none", async () => {
    await pulled(new MadeImage([makeTar([file("named", "", { pax: { path: "", mtime: "" } })])]));
    expect(listing()).toEqual({ named: "" });
  });

  it("writes nothing through a link, whatever order the entries come in", async () => {
    const outside = join(folder, "outside");
    mkdirSync(outside);
    const image = new MadeImage([
      makeTar([
        symlink("evil", outside),
        file("evil/a", "1"),
        symlink("evil2", `${"../".repeat(20)}${outside.slice(1)}`),
        file("evil2/b", "2"),
        symlink("f", `${outside}/c`),
        file("f", "3"),
      ]),
      makeTar([hardlink("hard", "evil"), file("hard/d", "4")]),
    ]);
    await pulled(image);
    expect(readdirSync(outside)).toEqual([]);
    expect(listing()["f"]).toBe("3");
  });

  it("leaves devices and FIFOs out", async () => {
    await pulled(
      new MadeImage([
        makeTar([
          { path: "dev/sda", type: "4" },
          { path: "null", type: "3" },
          { path: "pipe", type: "6" },
          file("kept"),
        ]),
      ]),
    );
    expect(listing()).toEqual({ kept: "kept" });
    expect(notes.join("\n")).toContain("3 device files");
  });

  it.each([
    ["gzip", gzipSync],
    [
      "several gzip members",
      (tar: Buffer) => Buffer.concat([gzipSync(tar.subarray(0, 700)), gzipSync(tar.subarray(700))]),
    ],
    ["zstd", zstdCompressSync],
    [
      "several zstd frames",
      (tar: Buffer) =>
        Buffer.concat([zstdCompressSync(tar.subarray(0, 700)), zstdCompressSync(tar.subarray(700))]),
    ],
    [
      "zstd and frames to skip",
      (tar: Buffer) => Buffer.concat([skippable, zstdCompressSync(tar), skippable]),
    ],
    ["nothing", (tar: Buffer) => tar],
  ])("reads layers compressed with %s", async (_what, compress) => {
    await pulled(new MadeImage([makeTar([file("a", "x".repeat(5_000))])], {}, compress));
    expect(listing()["a"]).toHaveLength(5_000);
  });

  it("answers the config that a container runs with", async () => {
    const { config, digest } = await pulled(
      new MadeImage([makeTar([file("a")])], {
        Env: ["A=1", "B=x=y", "bad"],
        Entrypoint: ["/e"],
        Cmd: ["c"],
        User: "u:g",
        WorkingDir: "/w",
        ExposedPorts: { "80/tcp": {} },
        Volumes: { "/data": {}, relative: {} },
        StopSignal: "SIGINT",
        StopTimeout: 30,
        Healthcheck: { Test: ["CMD", "/check"] },
      }),
    );
    expect(config).toMatchObject({
      env: { A: "1", B: "x=y" },
      entrypoint: ["/e"],
      cmd: ["c"],
      user: "u:g",
      workingDir: "/w",
      exposedPorts: ["80/tcp"],
      volumes: ["/data"],
      stopSignal: "SIGINT",
      stopTimeoutSeconds: 30,
      healthCheck: { argv: ["/check"], retries: 3 },
    });
    expect(digest).toMatch(/^sha256:/);
  });

  it("fetches a layer once, however many images share it", async () => {
    const base = makeTar([file("base")]);
    const asked: string[] = [];
    const counting = (image: MadeImage): ImageSource => ({
      root: image.root,
      manifest: (descriptor) => image.manifest(descriptor),
      blob: (descriptor) => {
        asked.push(descriptor.digest);
        return image.blob(descriptor);
      },
    });
    await pulled(counting(new MadeImage([base, makeTar([file("one")])])), { into: "one" });
    await pulled(counting(new MadeImage([base, makeTar([file("two")])])), { into: "two" });
    expect(asked.filter((digest) => digest === sha256(gzipSync(base)))).toHaveLength(1);
    expect(listing("two")).toEqual({ base: "base", two: "two" });
  });

  it("tells how far it is, layers that lie here already counted as done", async () => {
    const layer = (name: string, bytes: number): Buffer =>
      makeTar([file(name, randomBytes(bytes).toString("latin1"))]);
    const base = layer("base", 300_000);
    const first = new MadeImage([base, layer("one", 100_000)]);
    await pulled(first, { into: "one" });
    const total = progress[0]?.bytes_total ?? 0;
    expect(total).toBeGreaterThan(400_000);
    expect(progress[0]).toEqual({
      stage: "fetching",
      layers_done: 0,
      layers_total: 2,
      bytes_done: 0,
      bytes_total: total,
    });
    expect(progress.at(-1)).toEqual({
      stage: "unpacking",
      layers_done: 2,
      layers_total: 2,
      bytes_done: total,
      bytes_total: total,
    });
    const bytes = progress.map(({ bytes_done }) => bytes_done);
    expect(bytes).toEqual(bytes.toSorted((a, b) => a - b));
    // Often enough to be watched, and not for each of the 1,000-byte chunks.
    expect(progress.length).toBeGreaterThan(50);
    expect(progress.length).toBeLessThan(250);
    progress.length = 0;
    await pulled(new MadeImage([base, layer("two", 1_000)]), { into: "two" });
    expect(progress[0]).toMatchObject({ layers_done: 1, layers_total: 2 });
    expect(progress[0]?.bytes_done).toBeGreaterThan(300_000);
  });

  it("tries again where a connection broke, and gives up in the end", async () => {
    const image = new MadeImage([makeTar([file("a", "x".repeat(20_000))])]);
    let failures = 2;
    const flaky: ImageSource = {
      root: image.root,
      manifest: (descriptor) => image.manifest(descriptor),
      blob: async function* (descriptor) {
        for await (const chunk of image.blob(descriptor)) {
          yield chunk;
          if (failures > 0) {
            failures -= 1;
            throw Object.assign(new Error("aborted"), { code: "ECONNRESET" });
          }
        }
      },
    };
    await pulled(flaky);
    expect(listing()["a"]).toHaveLength(20_000);
    // What broke off is not counted twice.
    expect(Math.max(...progress.map((one) => one.bytes_done))).toBe(progress[0]?.bytes_total);
    failures = 100;
    rmSync(join(folder, "images"), { recursive: true });
    await expect(pulled(flaky, { into: "again" })).rejects.toThrow(/aborted/);
  });

  it("chooses this machine's build from an index, and names the others where it is missing", async () => {
    const image = new MadeImage([makeTar([file("here")])]);
    const manifest = { digest: sha256(image.rootBytes), size: image.rootBytes.length };
    const other = { digest: `sha256:${"0".repeat(64)}`, size: 3 };
    const index = Buffer.from(
      JSON.stringify({
        manifests: [
          { ...other, platform: { os: "linux", architecture: "s390x" } },
          { ...other, platform: { os: "unknown", architecture: "unknown" } },
          { ...manifest, platform: { os: "linux", architecture: "amd64" } },
        ],
      }),
    );
    image.rootBytes = index;
    expect(await pulled(image, { digest: sha256(index) })).toMatchObject({ digest: manifest.digest });
    await expect(pulled(image, { architecture: "arm64", into: "x" })).rejects.toThrow(
      /no build for linux\/arm64; it has linux\/s390x, linux\/amd64/,
    );
    await expect(pulled(image, { digest: other.digest, into: "y" })).rejects.toThrow(/another content/);
  });

  it("refuses blobs that are not what their digest and size say", async () => {
    const tamper = async (change: (image: MadeImage, digest: string) => void): Promise<unknown> => {
      const image = new MadeImage([makeTar([file("a", "x".repeat(10_000))])]);
      const { layers } = JSON.parse(image.rootBytes.toString()) as { layers: { digest: string }[] };
      change(image, layers[0]?.digest ?? "");
      return pulled(image).then(
        () => "pulled",
        (error: unknown) => String(error),
      );
    };
    expect(
      await tamper((image, digest) =>
        image.blobs.set(digest, Buffer.concat([image.blobs.get(digest) ?? Buffer.alloc(0), Buffer.alloc(1)])),
      ),
    ).toMatch(/larger/);
    expect(
      await tamper((image, digest) =>
        image.blobs.set(digest, (image.blobs.get(digest) ?? Buffer.alloc(0)).subarray(0, 50)),
      ),
    ).toMatch(/ended after/);
    expect(
      await tamper((image, digest) => {
        const bytes = Buffer.from(image.blobs.get(digest) ?? Buffer.alloc(0));
        bytes[40] = (bytes[40] ?? 0) ^ 1;
        image.blobs.set(digest, bytes);
      }),
    ).toMatch(/another content/);
    expect(readdirSync(join(folder, "images/incoming"))).toEqual([]);
    expect(existsSync(at(""))).toBe(false);
  });

  it("refuses a layer whose tar is not what the config says, or is no tar", async () => {
    const honest = makeTar([file("a")]);
    const lie = new MadeImage([honest], {}, () => gzipSync(makeTar([file("b")])));
    await expect(pulled(lie)).rejects.toThrow(/not what the image's config says/);
    const junk = new MadeImage([Buffer.alloc(2_000, 0x41)]);
    await expect(pulled(junk)).rejects.toThrow(/no tar archive/);
    const cut = new MadeImage([honest.subarray(0, 513)]);
    await expect(pulled(cut)).rejects.toThrow(/ends in the middle/);
    const broken = new MadeImage([honest], {}, (tar) => gzipSync(tar).subarray(0, 60));
    await expect(pulled(broken)).rejects.toThrow(/decompressed/);
  });

  it("refuses compressions that it does not know", async () => {
    for (const magic of [Buffer.from([0xfd, 0x37, 0x7a, 0x58, 0x5a, 0]), Buffer.from("BZh91AY")]) {
      await expect(pulled(new MadeImage([makeTar([])], {}, () => magic))).rejects.toThrow(/xz or bzip2/);
    }
  });

  it("stops at an archive larger than the disk", async () => {
    const bomb = new MadeImage([makeTar([])], {}, (tar) => tar);
    const lie = JSON.parse(bomb.rootBytes.toString()) as { layers: { size: number }[] };
    if (lie.layers[0] !== undefined) lie.layers[0].size = 1e15;
    bomb.rootBytes = Buffer.from(JSON.stringify(lie));
    await expect(pulled(bomb)).rejects.toThrow(/too full/);
  });

  it.each([
    "",
    "[]",
    "{}",
    "null",
    '{"layers":[],"config":{}}',
    '{"manifests":[{}]}',
    '{"manifests":[]}',
    '{"schemaVersion":1,"fsLayers":[]}',
  ])("refuses the manifest %s", async (text) => {
    const image = new MadeImage([makeTar([file("a")])]);
    image.rootBytes = Buffer.from(text);
    await expect(pulled(image)).rejects.toMatchObject({ name: "ImageError" });
  });

  it("survives random damage to a layer's tar without writing outside", async () => {
    writeFileSync(join(folder, "witness"), "untouched");
    const tar = makeTar([
      directory("d/"),
      file("d/a", "abc"),
      symlink("d/l", "../../witness"),
      hardlink("h", "d/a"),
      file("z", "x".repeat(1_500)),
    ]);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(tar.length - 1), fc.nat(255)), { minLength: 1, maxLength: 12 }),
        async (changes) => {
          rmSync(join(folder, "rootfs"), { recursive: true, force: true });
          const bytes = Buffer.from(tar);
          for (const [where, value] of changes) bytes[where] = value;
          // A header's checksum is made right again, so that damage gets past it.
          for (let header = 0; header + 512 <= bytes.length; header += 512)
            fixChecksum(bytes.subarray(header, header + 512));
          await pulled(new MadeImage([bytes])).catch((error: unknown) =>
            expect(error).toMatchObject({ name: "ImageError" }),
          );
          expect(readFileSync(join(folder, "witness"), "utf8")).toBe("untouched");
          expect(
            readdirSync(folder).filter((name) => !["images", "rootfs", "witness"].includes(name)),
          ).toEqual([]);
        },
      ),
      { numRuns: 150 },
    );
  });
});

/** A zstd frame that holds no data, as zstd:chunked has them. */
const skippable = Buffer.from([0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);

function fixChecksum(header: Buffer): void {
  if (header.toString("latin1", 257, 262) !== "ustar") return;
  header.fill(0x20, 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
}
