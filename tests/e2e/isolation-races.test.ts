// Links that change while the file routes walk over them, and paths that would lead a program outside: nothing beyond the users' own
// tree is ever read or written.
import { spawnSync } from "node:child_process";
import { beforeAll, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
/** Names that the agent's root and the disk's own part have, and the users' tree has not. */
const beyond = ["/mnt/boot.json", "/mnt/disk/cloche/store.db", "/cloche/store.db", "/agent.cjs"];
const marker = `isolation-${process.pid}-${Date.now().toString(36)}`;

beforeAll(async () => {
  sandbox = await client.create();
  await client.call(sandbox, "PUT", "/v1/store/kept", { json: { value: "yes" } });
  await client.shell(sandbox, "mkdir -p /root/race/inside && echo inside > /root/race/inside/secret");
});

const read = async (path: string): Promise<{ status: number; text: string }> => {
  const answer = await client.call(sandbox, "GET", `/v1/files?path=${encodeURIComponent(path)}`);
  return { status: answer.status, text: answer.body.toString() };
};

test("no link, dot or procfs path leads to the agent's files", async () => {
  const ups = "../".repeat(30);
  await client.shell(
    sandbox,
    `ln -sfn / /root/race/slash; ln -sfn ${ups} /root/race/ups; ln -sfn /proc/self/root /root/race/proc`,
  );
  const starts = ["", "/root/race/slash", "/root/race/ups", "/root/race/proc", `/root/${ups}`.slice(0, -1)];
  starts.push(
    "/proc/self/root",
    "/proc/thread-self/root",
    "/proc/self/cwd",
    "/proc/1/root",
    "/proc/1/cwd",
    "/dev/fd/3",
  );
  for (let fd = 0; fd < 12; fd += 1) starts.push(`/proc/self/fd/${fd}`, `/proc/1/fd/${fd}`);
  for (const start of starts)
    for (const path of beyond) expect((await read(start + path)).status, start + path).not.toBe(200);
  for (const path of ["/proc/self/environ", "/proc/1/environ", "/proc/self/maps"]) {
    const { status, text } = await read(path);
    if (status === 200) expect(text, path).not.toMatch(/boot\.json|node|secret/i);
  }
});

test("names that are swapped under every route lead nowhere else", async () => {
  // A directory, a link to it, a link to the root and a link far up take turns under one name, as fast as they can.
  const racer = [
    "import os, time",
    "os.chdir('/root/race')",
    "end = time.time() + 12",
    "links = ['inside', '/', '../' * 30, '/proc/self/root', '/mnt', '/proc/1/fd']",
    "i = 0",
    "while time.time() < end:",
    "  for target in links:",
    "    name = 'next'",
    "    try: os.symlink(target, name)",
    "    except FileExistsError: pass",
    "    try: os.rename(name, 'x')",
    "    except OSError: pass",
    "  i += 1",
    "  if i % 50 == 0:",
    "    try: os.unlink('x'); os.mkdir('x'); open('x/secret', 'w').write('inside\\n'); os.rename('x', f'd{i}')",
    "    except OSError: pass",
    "print(i)",
  ].join("\n");
  const racing = client.exec(sandbox, ["python3", "-c", racer], { timeout_ms: 60_000 });
  let over = false;
  void racing
    .finally(() => {
      over = true;
    })
    .catch(() => undefined);
  const routes: ((i: number) => Promise<unknown>)[] = [
    async () => {
      const { status, text } = await read("/root/race/x/secret");
      if (status === 200) expect(text).toBe("inside\n");
    },
    ...beyond.map((path) => async () => expect((await read(`/root/race/x${path}`)).status).not.toBe(200)),
    (i) =>
      client.call(sandbox, "POST", `/v1/files?path=/root/race/x/${marker}-${i}`, {
        body: Buffer.from("written"),
      }),
    (i) =>
      client.call(sandbox, "POST", "/v1/files/mkdir", {
        json: { path: `/root/race/x/${marker}-d${i}`, parents: true },
      }),
    (i) =>
      client.call(sandbox, "POST", "/v1/files/move", {
        json: { source: `/root/race/x/${marker}-${i}`, destination: `/root/race/x/${marker}-m${i}` },
      }),
    async () => {
      const listed = await client.call(sandbox, "GET", "/v1/files/list?path=/root/race/x&depth=2");
      expect(listed.body.toString()).not.toMatch(/boot\.json|store\.db|agent\.cjs/);
    },
    (i) => client.call(sandbox, "DELETE", `/v1/files?path=/root/race/x/${marker}-d${i}&recursive=true`),
    async () => {
      const archive = await client.call(sandbox, "GET", "/v1/files/archive?path=/root/race/x/inside");
      expect(archive.body.includes("boot.json")).toBe(false);
    },
  ];
  const hammer = async (offset: number): Promise<number> => {
    let done = 0;
    for (; !over; done += 1) await routes[(done + offset) % routes.length]?.(done * 4 + offset);
    return done;
  };
  const done = await Promise.all([0, 1, 2, 3].map(hammer));
  expect(Number((await racing).stdout)).toBeGreaterThan(10);
  expect(Math.min(...done)).toBeGreaterThan(0);
  // Seen from the host: what was written lies in the users' part of a disk, or nowhere.
  const written = spawnSync("find", ["/run", "/mnt", "/tmp", "-name", `${marker}*`], { encoding: "utf8" });
  expect(written.stdout.split("\n").filter((path) => path !== "" && !path.includes("/disk/fs/"))).toEqual([]);
  const kept = await client.call(sandbox, "GET", "/v1/store/kept");
  expect(JSON.parse(kept.body.toString())).toMatchObject({ value: "yes" });
}, 120_000);
