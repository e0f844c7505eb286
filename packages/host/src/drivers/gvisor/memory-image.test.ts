import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CommandError } from "@cloche/base/run";
import { afterAll, afterEach, beforeEach, describe, expect, it } from "vitest";
import { ImageMismatchError } from "../driver.ts";
import { noteMadeWith, requireForkable, requireRestorable, restoreError } from "./memory-image.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "cloche-image-"));
});
afterEach(() => rm(dir, { recursive: true }));

const cache = mkdtempSync(join(tmpdir(), "cloche-cache-"));
afterAll(() => rmSync(cache, { recursive: true }));
const present = {
  agentRootDir: join(cache, "agent-root-0123456789abcdef"),
  agentPort: 61_070,
  platform: "p1",
  cpuClass: "c1",
  runscVersion: "20260905.0",
};

mkdirSync(present.agentRootDir);

describe("requireRestorable", () => {
  const refusal = async (): Promise<ImageMismatchError> => {
    const error = await requireRestorable(dir, present).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ImageMismatchError);
    return error as ImageMismatchError;
  };

  it.each([true, false])("takes an image of this gVisor and CPU, durable: %s", async (durable) => {
    await noteMadeWith(dir, present, durable);
    expect(await requireRestorable(dir, { ...present, agentRootDir: "/newer/agent-root" })).toEqual(present);
    expect(JSON.parse(await readFile(join(dir, "made-with"), "utf8"))).toEqual(present);
  });

  it.each([
    ["a link", (path: string) => symlink("/etc/passwd", path)],
    ["a FIFO", async (path: string) => void execFileSync("mkfifo", [path])],
  ])("refuses an image that has %s in the place of a file", async (_, put) => {
    await noteMadeWith(dir, present, false);
    await put(join(dir, "pages.img"));
    expect((await refusal()).message).toMatch(/it has something else than files/);
  });

  it.each([
    [
      "another gVisor",
      { platform: "p0", runscVersion: "20260101.0" },
      /saved by gVisor 20260101.0, and gVisor 20260905.0/,
    ],
    ["another CPU", { platform: "p0", cpuClass: "c0" }, /on another kind of processor/],
    [
      "an agent that is gone",
      { agentRootDir: "/nowhere/agent-root-00000000000000ff" },
      /agent .* no longer in this host's cache/,
    ],
  ])("names why not, of %s, and no path", async (_, difference, words) => {
    await noteMadeWith(dir, { ...present, ...difference } as typeof present, false);
    const { message, code } = await refusal();
    expect([message, code]).toEqual([expect.stringMatching(words), "failed_precondition"]);
    expect(message).not.toContain("/");
  });

  const ofClass = { ...present, platform: "p0" };

  it("takes an image of this gVisor and class of CPU, whatever other flags its CPU had", async () => {
    await noteMadeWith(dir, ofClass, false);
    expect(await requireRestorable(dir, present)).toEqual(ofClass);
  });

  it.each([
    ["class of CPU", { cpuClass: "c2" }, /another kind of processor/],
    ["gVisor", { runscVersion: "20260101.0" }, /saved by gVisor 20260101.0/],
  ])("refuses an image of another %s", async (_, difference, words) => {
    await noteMadeWith(dir, { ...ofClass, ...difference } as typeof ofClass, false);
    await expect(requireRestorable(dir, present)).rejects.toThrow(words);
  });

  it("restores from the agent's root of the same content in this host's cache, wherever that lies", async () => {
    const root = join(dir, "agent-root-0067e835c1363333");
    await mkdir(root);
    await noteMadeWith(dir, { ...present, agentRootDir: "/elsewhere/agent-root-0067e835c1363333" }, false);
    const host = { ...present, agentRootDir: join(dir, "agent-root-1fa1953859cea02a") };
    expect((await requireRestorable(dir, host)).agentRootDir).toBe(root);
    await rm(root, { recursive: true });
    await expect(requireRestorable(dir, host)).rejects.toThrow(/no longer in this host's cache/);
  });

  it.each([
    ["nothing"],
    [""],
    ["{"],
    ["null"],
    ['{"platform":"p1"}'],
    ['{"agentRootDir":7,"platform":"p1"}'],
    [JSON.stringify({ ...present, agentRootDir: "/" })],
    [JSON.stringify({ ...present, agentRootDir: "/etc" })],
    [JSON.stringify({ ...present, agentRootDir: `${present.agentRootDir}/..` })],
    [JSON.stringify({ ...present, agentPort: "61070" })],
  ])("takes a note of %j for damage", async (text) => {
    if (text !== "nothing") await writeFile(join(dir, "made-with"), text);
    expect((await refusal()).message).toMatch(/^the memory image is damaged/);
  });
});

it("refuses to clone a machine whose sentry is of another version, and says what to do", () => {
  requireForkable({ ...present, agentRootDir: "/older" }, present);
  const old = { ...present, platform: "p0", runscVersion: "20260101.0" };
  expect(() => requireForkable(old, present)).toThrow(/run by gVisor 20260101\.0.*checkpoint_id.*suspend/);
});

describe("restoreError", () => {
  const failed = (said: string) => new CommandError(["runsc"], 128, "exit code 128", said);
  const lives = { wasKilled: async () => false };
  const refused = 'restoring container "u1": failed to load kernel: failed to load memory files: EOF';
  const died = 'restoring container "u1": urpc method "containerManager.Restore" failed: EOF';

  const shortPages = 'starting container: restoring container "u1": I/O error';
  const flipped =
    'starting container: restoring container "u1": json unmarshal error to get container specs map';

  it.each([refused, died, shortPages, flipped, "gvisor.dev/gvisor/pkg/state.(*decodeState).Load(0x14)"])(
    "%s: damaged",
    async (said) => {
      expect(await restoreError(lives, failed(said))).toBeInstanceOf(ImageMismatchError);
    },
  );

  it.each([
    ["somebody killed the sentry", { wasKilled: async () => true }, failed(died)],
    ["the host is out of memory", lives, failed(`${refused}: cannot allocate memory`)],
    ["the host's disk is full", lives, failed(`${died}: no space left on device`)],
    ["something else failed", lives, failed("creating the gofer: permission denied")],
    ["it was no command", lives, new Error("failed to load kernel")],
  ])("where %s the image is kept", async (_, unit, error) => {
    expect(await restoreError(unit, error)).toBe(error);
  });
});
