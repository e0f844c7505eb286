// What a watch tells: of every change once, in order, with the path it was asked by; and of its own end.
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { type ClientRequest, request } from "node:http";
import { join } from "node:path";
import { limits } from "@cloche/protocol";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { type Answer, token } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isRoot, startGuestAgent, until } from "./guest-fixture.ts";

let guest: GuestFixture;
const open: Watch[] = [];
beforeAll(async () => {
  if (isRoot) guest = await startGuestAgent();
});
afterEach(() => {
  for (const watch of open.splice(0)) watch.request.destroy();
});
afterAll(() => guest?.close());

const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
const q = (path: string, more = ""): string => `path=${encodeURIComponent(path)}${more}`;
const put = (path: string, raw = "x"): Promise<Answer> => guest.call("PUT", `/v1/files?${q(path)}`, { raw });
const copy = (body: Record<string, unknown>): Promise<Answer> =>
  guest.call("POST", "/v1/files/copy", { body });
const shell = async (script: string): Promise<void> => {
  expect(await guest.exec({ cmd: ["sh", "-c", script] })).toMatchObject({ stderr: "", exit_code: 0 });
};

interface Watch {
  request: ClientRequest;
  /** `created directory /a/b` and the like, `renamed file /b from /a`. */
  events: string[];
  ended: boolean;
}

/** Resolves when the watch is ready. */
async function watch(path: string, more = ""): Promise<Watch> {
  const answered = Promise.withResolvers<Watch>();
  const sent = request(
    {
      port: guest.port,
      path: `/v1/files/watch?${q(path, more)}`,
      headers: { authorization: `Bearer ${token()}` },
    },
    (response) => {
      const one: Watch = { request: sent, events: [], ended: false };
      let text = "";
      response.on("data", (chunk: Buffer) => {
        text += chunk.toString();
        const parts = text.split("\n\n");
        text = parts.pop() ?? "";
        one.events.push(...parts.filter((part) => !part.startsWith(":")).map(shown));
        answered.resolve(one);
      });
      response.on("end", () => (one.ended = true));
      response.on("error", () => undefined);
    },
  );
  sent.on("error", answered.reject);
  sent.end();
  const one = await answered.promise;
  open.push(one);
  return one;
}

function shown(text: string): string {
  const event = /^event: (\w+)$/m.exec(text)?.[1];
  const data = JSON.parse(/^data: (.*)$/m.exec(text)?.[1] ?? "null") as Record<string, string>;
  return [
    event,
    data["entry_type"],
    data["path_encoded"] ?? data["path"],
    data["from"] && `from ${data["from"]}`,
  ]
    .filter(Boolean)
    .join(" ");
}

/** Waits until the last event is there, and answers all but `ready`. */
async function told(one: Watch, last: string): Promise<string[]> {
  await until(`${last} among ${one.events.join(", ")}`, () => one.events.includes(last));
  return one.events.slice(1);
}

describe.skipIf(!isRoot)("a watch", () => {
  it("tells of everything in a directory, ready first", async () => {
    mkdirSync(onDisk("w/below"), { recursive: true });
    const one = await watch("/w/");
    expect(one.events).toEqual(["ready directory /w"]);
    await shell("cd /w; echo a > a; chmod 600 a; mv a b; ln -s b link; rm b; rmdir below; mkdir last");
    expect(await told(one, "created directory /w/last")).toEqual([
      "created file /w/a",
      "modified file /w/a",
      "attributes file /w/a",
      "renamed file /w/b from /w/a",
      "created symlink /w/link",
      "deleted file /w/b",
      "deleted directory /w/below",
      "created directory /w/last",
    ]);
  });

  it("tells of a tree, of what comes into it and of what leaves it", async () => {
    mkdirSync(onDisk("t/one/two"), { recursive: true });
    mkdirSync(onDisk("elsewhere"));
    const one = await watch("/t", "&recursive=true");
    await shell("mkdir -p /t/one/two/three/four; touch /t/one/two/three/four/file");
    const made = await told(one, "created file /t/one/two/three/four/file");
    expect(made).toContain("created directory /t/one/two/three");
    expect(made).toContain("created directory /t/one/two/three/four");
    expect(
      made.filter((event, index) => event.startsWith("created") && made.indexOf(event) !== index),
    ).toEqual([]);
    // A directory keeps telling by its new name.
    await shell("mv /t/one /t/renamed; echo x > /t/renamed/two/three/four/file");
    const moved = await told(one, "modified file /t/renamed/two/three/four/file");
    expect(moved).toContain("renamed directory /t/renamed from /t/one");
    await shell("mv /t/renamed/two /elsewhere/two; touch /elsewhere/two/unseen; touch /t/end");
    const left = await told(one, "created file /t/end");
    await until("it left", () => one.events.includes("deleted directory /t/renamed/two"));
    expect(left.filter((event) => event.includes("unseen"))).toEqual([]);
    await shell("mv /elsewhere/two /t/back; touch /t/back/seen");
    const back = await told(one, "created file /t/back/seen");
    expect(back).toContain("created directory /t/back");
    expect(back).toContain("created directory /t/back/three/four");
    await shell("rm -r /t/back; touch /t/over");
    expect(await told(one, "created file /t/over")).toContain("deleted directory /t/back/three/four");
  });

  it("never sees our own temporary names, and tells a replacement from a new file", async () => {
    mkdirSync(onDisk("n"));
    writeFileSync(onDisk("n/old"), "old");
    const one = await watch("/n", "&recursive=true");
    await shell("mkdir -p /dev/shm/n");
    const two = await watch("/dev/shm/n");
    for (const folder of ["/n", "/dev/shm/n"]) {
      await put(`${folder}/new`);
      await put(`${folder}/new`, "y");
      await guest.call("POST", `/v1/files?${q(`${folder}/new`)}`, { raw: "z" });
      await copy({ source: `${folder}/new`, destination: `${folder}/copy` });
    }
    await copy({ source: "/n/new", destination: "/n/old" });
    await put("/n/old");
    await copy({ source: "/n", destination: "/n/tree", recursive: true });
    const seen = [...new Set(await told(one, "created file /n/tree/old"))];
    expect(seen.slice(0, 5)).toEqual([
      "created file /n/new",
      "modified file /n/new",
      "created file /n/copy",
      "modified file /n/old",
      "created directory /n/tree",
    ]);
    expect(seen.slice(5).sort()).toEqual(
      ["copy", "new", "old"].map((name) => `created file /n/tree/${name}`),
    );
    expect([...new Set(await told(two, "created file /dev/shm/n/copy"))]).toEqual([
      "created file /dev/shm/n/new",
      "modified file /dev/shm/n/new",
      "created file /dev/shm/n/copy",
    ]);
  });

  it("of one file goes on when it is replaced, deleted and made again", async () => {
    mkdirSync(onDisk("f"));
    writeFileSync(onDisk("f/file"), "x");
    symlinkSync("/f/file", onDisk("f/link"));
    const one = await watch("/f/file");
    const two = await watch("/f/link");
    expect(one.events).toEqual(["ready file /f/file"]);
    await put("/f/file", "y");
    await put("/f/other", "y");
    await shell("rm /f/file; touch /f/file");
    expect(await told(one, "created file /f/file")).toEqual([
      "modified file /f/file",
      "deleted file /f/file",
      "created file /f/file",
      ...one.events.slice(4),
    ]);
    expect(await told(two, "created file /f/link")).toContain("modified file /f/link");
  });

  it("ends when what it watches is deleted or moved away", async () => {
    for (const [name, script] of [
      ["gone", "rm -r /gone"],
      ["away", "mv /away /elsewhere-now"],
    ] as const) {
      mkdirSync(onDisk(`${name}/below`), { recursive: true });
      const one = await watch(`/${name}`, "&recursive=true");
      await shell(script);
      await until("it ended", () => one.ended);
      expect(one.events.at(-1)).toBe(`deleted directory /${name}`);
    }
  });

  it("says when it has lost some, and goes on", async () => {
    mkdirSync(onDisk("flood"));
    const one = await watch("/flood", "&recursive=true");
    one.request.socket?.pause();
    // Long paths: what the sockets on the way hold is soon full.
    const flood = `
import os
deep = "/flood"
for level in "abc":
    deep += "/" + level * 240
    os.mkdir(deep)
os.chdir(deep)
for folder in range(5):
    os.mkdir(str(folder))
    names = [f"{folder}/{number:0240}" for number in range(1500)]
    for name in names: os.close(os.open(name, os.O_CREAT))
    for name in names: os.unlink(name)
os.mkdir("/flood/made-meanwhile")
`;
    expect(await guest.exec({ cmd: ["python3", "-c", flood] })).toMatchObject({ stderr: "", exit_code: 0 });
    one.request.socket?.resume();
    await until("it is told", () => one.events.some((event) => event.startsWith("overflow")));
    await shell("touch /flood/made-meanwhile/file");
    await until("it goes on", () => one.events.includes("created file /flood/made-meanwhile/file"));
  }, 60_000);

  it("names what is not UTF-8 by its bytes", async () => {
    mkdirSync(onDisk("bytes"));
    const one = await watch("/bytes");
    await shell("touch /bytes/$(printf 'caf\\351')");
    expect(await told(one, "created file /bytes/caf%E9")).toContain("created file /bytes/caf%E9");
  });

  it("is refused for what is not there, or too much", async () => {
    const asked = (path: string, more = ""): Promise<Answer> =>
      guest.call("GET", `/v1/files/watch?${q(path, more)}`);
    expect((await asked("/none")).status).toBe(404);
    expect((await asked("relative")).status).toBe(400);
    expect((await asked("/f/file/")).status).toBe(400);
    expect((await asked("/", "&recursive=perhaps")).status).toBe(400);
    const all = await Promise.all(Array.from({ length: limits.watches }, () => watch("/f")));
    expect(all).toHaveLength(limits.watches);
    expect(await asked("/f")).toMatchObject({ status: 429, json: { code: "resource_exhausted" } });
    for (const one of open.splice(0)) one.request.destroy();
    await until("there is room again", async () => {
      const one = await watch("/f").catch(() => undefined);
      return one?.events[0] === "ready directory /f";
    });
  });
});
