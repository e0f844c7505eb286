// chmod, chown and copy: what they change, what they leave alone, and what cannot be changed.
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Answer } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isGvisor, isRoot, startGuestAgent } from "./guest-fixture.ts";

let guest: GuestFixture;
beforeAll(async () => {
  if (isRoot) guest = await startGuestAgent();
});
afterAll(() => guest?.close());

const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
const post = (route: string, body: Record<string, unknown>): Promise<Answer> =>
  guest.call("POST", `/v1/files/${route}`, { body });
const modeOf = (path: string): number => lstatSync(onDisk(path)).mode & 0o7777;

function plant(folder: string): void {
  mkdirSync(onDisk(`${folder}/in/deep`), { recursive: true });
  for (const name of ["a", "in/b", "in/deep/c"]) writeFileSync(onDisk(`${folder}/${name}`), name);
  symlinkSync("/etc/passwd", onDisk(`${folder}/in/link`));
  symlinkSync("nowhere", onDisk(`${folder}/in/dangling`));
  execFileSync("mkfifo", [onDisk(`${folder}/in/fifo`)]);
}

describe.skipIf(!isRoot)("chmod and chown", () => {
  it("change one path, following a final link", async () => {
    writeFileSync(onDisk("one"), "x");
    symlinkSync("one", onDisk("to-one"));
    expect((await post("chmod", { path: "/to-one", mode: "4751" })).json).toMatchObject({
      path: "/to-one",
      permissions: "4751",
      symlink_target: "",
    });
    expect(modeOf("one")).toBe(0o4751);
    const owned = await post("chown", { path: "/to-one", user: "ann", group: "crew" });
    expect(owned.json).toMatchObject({ owner: "ann", user: "ann", group: "crew" });
    expect(lstatSync(onDisk("to-one")).uid).toBe(0);
    expect((await post("chown", { path: "/one", user: 0 })).json).toMatchObject({
      user: "root",
      group: "crew",
    });
    expect((await post("chown", { path: "/one", group: "0" })).json).toMatchObject({ group: "root" });
    expect((await post("chown", { path: "/one", user: "4242" })).json).toMatchObject({ user: "4242" });
  });

  it("change a tree, but nothing that its links lead to", async () => {
    plant("tree");
    mkdirSync(onDisk("outside"));
    writeFileSync(onDisk("outside/file"), "x", { mode: 0o644 });
    symlinkSync("/outside", onDisk("tree/out"));
    expect((await post("chmod", { path: "/tree", mode: "0700", recursive: true })).status).toBe(200);
    for (const path of ["tree", "tree/a", "tree/in", "tree/in/deep/c", "tree/in/fifo"])
      expect(modeOf(path), path).toBe(0o700);
    expect(modeOf("outside/file")).toBe(0o644);
    expect(statSync(onDisk("etc/passwd")).mode & 0o777).toBe(0o644);
    await post("chown", { path: "/tree", user: "ann", group: "crew", recursive: true });
    for (const path of ["tree", "tree/in/deep/c", "tree/in/link", "tree/out"])
      expect(lstatSync(onDisk(path)).uid, path).toBe(1000);
    expect(statSync(onDisk("etc/passwd")).uid).toBe(0);
    expect(statSync(onDisk("outside/file")).uid).toBe(0);
    // Of the one who asks, too, where he may enter it only by that.
    chmodSync(onDisk("tree/in"), 0o000);
    const opened = await guest.call("POST", "/v1/files/chmod?as_user=ann", {
      body: { path: "/tree", mode: "0755", recursive: true },
    });
    expect(opened.status).toBe(200);
    expect(modeOf("tree/in/deep/c")).toBe(0o755);
  });

  it("refuse what is no mode, no user and no path", async () => {
    for (const [route, body, field] of [
      ["chmod", { path: "/one" }, "mode"],
      ["chmod", { path: "/one", mode: "" }, "mode"],
      ["chmod", { path: "/one", mode: "0888" }, "mode"],
      ["chmod", { path: "/one", mode: 644 }, "mode"],
      ["chmod", { mode: "0644" }, "path"],
      ["chmod", { path: "/one", mode: "0644", recursive: "yes" }, "recursive"],
      ["chown", { path: "/one" }, "user"],
      ["chown", { path: "/one", user: "nobody-here" }, "user"],
      ["chown", { path: "/one", group: "nobody-here" }, "group"],
      ["chown", { path: "/one", user: "ann:crew" }, "user"],
      ["chown", { path: "/one", user: -1 }, "user"],
      ["chown", { path: "/one", user: [] }, "user"],
      ["copy", { source: "/one" }, "destination"],
      ["copy", { destination: "/one" }, "source"],
    ] as const) {
      const answer = await post(route, body);
      expect(answer, JSON.stringify(body)).toMatchObject({ status: 400, json: { code: "invalid_argument" } });
      expect(answer.json["message"]).toContain(field);
    }
    expect((await post("chmod", { path: "/none", mode: "0644" })).status).toBe(404);
    expect((await post("chown", { path: "/none", user: "ann" })).status).toBe(404);
  });
});

describe.skipIf(!isRoot)("copy", () => {
  it("keeps mode, owner and times of a file, and its holes", async () => {
    const fd = openSync(onDisk("sparse"), "w");
    writeSync(fd, "begin", 0);
    writeSync(fd, "middle", 5 * 1_048_576 + 3);
    execFileSync("truncate", ["-s", "64M", onDisk("sparse")]);
    closeSync(fd);
    chownSync(onDisk("sparse"), 1000, 2000);
    chmodSync(onDisk("sparse"), 0o4751);
    utimesSync(onDisk("sparse"), 1_000_000_000, 1_234_567_890.5);
    const copied = await post("copy", { source: "/sparse", destination: "/sparse-copy" });
    expect(copied.json).toMatchObject({
      path: "/sparse-copy",
      size: 64 * 1_048_576,
      permissions: "4751",
      owner: "ann",
      group: "crew",
      modified_at: "2009-02-13T23:31:30.500Z",
    });
    expect(readFileSync(onDisk("sparse-copy")).equals(readFileSync(onDisk("sparse")))).toBe(true);
    expect(statSync(onDisk("sparse-copy")).blocks * 512).toBeLessThan(4 * 1_048_576);
  });

  it("copies extended attributes where there are any", async (context) => {
    writeFileSync(onDisk("attributed"), "x");
    const set = "import os,sys; os.setxattr(sys.argv[1], 'user.note', b'kept')";
    try {
      execFileSync("python3", ["-c", set, onDisk("attributed")], { stdio: "ignore" });
    } catch {
      context.skip("this file system has no extended attributes");
    }
    await post("copy", { source: "/attributed", destination: "/attributed-copy" });
    const get = "import os,sys; print(os.getxattr(sys.argv[1], 'user.note').decode())";
    expect(execFileSync("python3", ["-c", get, onDisk("attributed-copy")]).toString()).toBe("kept\n");
  });

  it("copies a tree with its links, only where that is asked for", async () => {
    plant("forest");
    chmodSync(onDisk("forest/in"), 0o750);
    const whole = { source: "/forest", destination: "/forest-copy" };
    const refused = await post("copy", whole);
    expect(refused).toMatchObject({ status: 400 });
    expect(refused.json["message"]).toContain("recursive=true");
    expect(existsSync(onDisk("forest-copy"))).toBe(false);
    expect((await post("copy", { ...whole, recursive: true })).json).toMatchObject({ is_dir: true });
    expect(readFileSync(onDisk("forest-copy/in/deep/c"), "utf8")).toBe("in/deep/c");
    expect(readlinkSync(onDisk("forest-copy/in/link"))).toBe("/etc/passwd");
    expect(lstatSync(onDisk("forest-copy/in/fifo")).isFIFO()).toBe(true);
    expect(modeOf("forest-copy/in")).toBe(0o750);
    // Into itself: of what was there when it began.
    const inside = { source: "/forest", destination: "/forest/in/again", recursive: true };
    expect((await post("copy", inside)).status).toBe(200);
    expect(readdirSync(onDisk("forest/in/again")).sort()).toEqual(["a", "in"]);
    expect(existsSync(onDisk("forest/in/again/in/again"))).toBe(false);
    // In memory, too, where the copy is made beside its target.
    const memory = { source: "/forest", destination: "/dev/shm/forest", recursive: true };
    expect((await post("copy", memory)).status).toBe(200);
    expect((await guest.exec({ cmd: ["sh", "-c", "ls -A /dev/shm /dev/shm/forest/in"] })).stdout).toContain(
      "deep",
    );
  });

  it("replaces a file in one step, follows a link that it is given, and copies what is hard-linked", async () => {
    writeFileSync(onDisk("from"), "new");
    writeFileSync(onDisk("to"), "old");
    linkSync(onDisk("to"), onDisk("other-name"));
    symlinkSync("from", onDisk("from-link"));
    symlinkSync("to", onDisk("to-link"));
    await post("copy", { source: "/from-link", destination: "/to" });
    expect(readFileSync(onDisk("to"), "utf8")).toBe("new");
    expect(readFileSync(onDisk("other-name"), "utf8")).toBe("old");
    await post("copy", { source: "/from", destination: "/to-link" });
    expect(lstatSync(onDisk("to-link")).isFile()).toBe(true);
    expect((await post("copy", { source: "/from", destination: "/from" })).status).toBe(200);
    expect(readFileSync(onDisk("from"), "utf8")).toBe("new");
  });

  it("names what is in the way", async () => {
    mkdirSync(onDisk("dir"), { recursive: true });
    writeFileSync(onDisk("file"), "x");
    const cases = [
      [{ source: "/none", destination: "/x" }, 404, "source"],
      [{ source: "/file", destination: "/none/x" }, 404, "destination"],
      [{ source: "/file", destination: "/dir" }, 409, "destination"],
      [{ source: "/dir", destination: "/file", recursive: true }, 400, "destination"],
      [{ source: "/file", destination: "/file/x" }, 400, "destination"],
      [{ source: "/file", destination: "/dir/.." }, 409, "destination"],
      [{ source: "/file", destination: "/new/" }, 400, "destination"],
    ] as const;
    for (const [body, status, field] of cases) {
      const answer = await post("copy", body);
      expect(answer, JSON.stringify(body)).toMatchObject({ status });
      expect(answer.json["message"]).toContain(field);
    }
    if (!isGvisor) {
      execFileSync("mknod", [onDisk("null"), "c", "1", "3"]);
      expect((await post("copy", { source: "/null", destination: "/null-copy" })).status).toBe(200);
    }
  });
});
