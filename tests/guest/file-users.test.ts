// File routes with a Unix user's rights: what he may do, he and nobody else; links and `..` lead him no further.
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Answer } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isRoot, startGuestAgent } from "./guest-fixture.ts";

const [ann, crew] = [1000, 2000];
let guest: GuestFixture;
beforeAll(async () => {
  if (!isRoot) return;
  guest = await startGuestAgent();
  writeFileSync(onDisk("etc/secret"), "root's own", { mode: 0o600 });
  mkdirSync(onDisk("root/private"), { mode: 0o700 });
  writeFileSync(onDisk("root/private/file"), "private", { mode: 0o644 });
  chownSync(onDisk("home/ann"), ann, ann);
  place("srv", 0, 0, 0o755);
  place("srv/crew", 0, crew, 0o2775);
  place("srv/sticky", 0, 0, 0o1777);
  writeFileSync(onDisk("srv/shared"), "shared", { mode: 0o664 });
  chownSync(onDisk("srv/shared"), 0, crew);
  chmodSync(onDisk("srv/shared"), 0o664);
  writeFileSync(onDisk("srv/sticky/roots"), "sticky", { mode: 0o644 });
  for (const [name, target] of [
    ["secret", "/etc/secret"],
    ["up", "../../root/private/file"],
    ["etc", "/etc"],
    ["new", "/etc/made-through-a-link"],
  ])
    symlinkSync(target as string, onDisk(`home/ann/${name}`));
});
afterAll(() => guest?.close());

const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
function place(path: string, uid: number, gid: number, mode: number): void {
  mkdirSync(onDisk(path), { recursive: true });
  chownSync(onDisk(path), uid, gid);
  chmodSync(onDisk(path), mode);
}
const as = { "x-file-user": "ann" };
const q = (path: string, more = ""): string => `path=${encodeURIComponent(path)}${more}`;
const get = (route: string, path: string, more = ""): Promise<Answer> =>
  guest.call("GET", `/v1/files${route}?${q(path, more)}`, { headers: as });
const write = (
  method: "PUT" | "POST",
  path: string,
  raw = "hers",
  headers: Record<string, string> = {},
): Promise<Answer> => guest.call(method, `/v1/files?${q(path)}`, { raw, headers: { ...as, ...headers } });
const post = (route: string, body: Record<string, unknown>): Promise<Answer> =>
  guest.call("POST", `/v1/files${route}`, { body, headers: as });
const denied = { status: 403, json: { code: "permission_denied" } };

describe.skipIf(!isRoot)("file routes as a user", () => {
  it("read what she may read, by no way anything else", async () => {
    writeFileSync(onDisk("home/ann/own"), "hers");
    chownSync(onDisk("home/ann/own"), ann, ann);
    expect((await get("", "/home/ann/own")).text).toBe("hers");
    expect((await get("", "/srv/shared")).text).toBe("shared");
    for (const path of [
      "/etc/secret",
      "/home/ann/secret",
      "/home/ann/up",
      "/home/ann/etc/secret",
      "/home/ann/../../etc/secret",
      "/root/private/file",
      "/srv/../root/private/file",
    ])
      expect(await get("", path), path).toMatchObject(denied);
    expect(await get("/list", "/root/private")).toMatchObject(denied);
    expect(await get("/stat", "/root/private/file")).toMatchObject(denied);
    expect(await get("/stat", "/home/ann/up", "&follow=true")).toMatchObject(denied);
    expect(await get("/exists", "/root/private/file")).toMatchObject(denied);
    expect(await get("/watch", "/root/private")).toMatchObject(denied);
    expect(await get("/archive", "/root/private")).toMatchObject(denied);
    // As root, as ever, both before and after.
    expect((await guest.call("GET", `/v1/files?${q("/etc/secret")}`)).text).toBe("root's own");
  });

  it.each(["PUT", "POST"] as const)("%s makes files that are hers, where she may", async (method) => {
    const made = await write(method, `/home/ann/${method}/file`);
    expect(made.json).toMatchObject({ owner: "ann", group: "ann", permissions: "0644" });
    expect(statSync(onDisk(`home/ann/${method}`)).uid).toBe(ann);
    expect((await write(method, "/home/ann/moded", "x", { "x-file-mode": "4750" })).json).toMatchObject({
      permissions: "4750",
      owner: "ann",
    });
    // By a supplementary group; the directory hands its own group on.
    expect((await write(method, `/srv/crew/${method}`)).json).toMatchObject({ owner: "ann", group: "crew" });
    for (const path of [
      `/etc/${method}`,
      "/etc/secret",
      "/home/ann/secret",
      "/home/ann/up",
      `/home/ann/etc/${method}`,
      "/home/ann/new",
      `/home/ann/../${method}`,
      "/srv/new/deep",
      "/srv/sticky/roots",
      "/dev/made",
    ])
      expect(await write(method, path), path).toMatchObject(denied);
    expect(readFileSync(onDisk("etc/secret"), "utf8")).toBe("root's own");
    expect(existsSync(onDisk("etc/made-through-a-link"))).toBe(false);
    expect(existsSync(onDisk("srv/new"))).toBe(false);
  });

  it.each(["PUT", "POST"] as const)(
    "%s to another's file that she may write keeps whose it is",
    async (method) => {
      const shared = onDisk("srv/shared");
      expect((await write(method, "/srv/shared", `by ${method}`)).json).toMatchObject({
        owner: "root",
        group: "crew",
        permissions: "0664",
      });
      expect(readFileSync(shared, "utf8")).toBe(`by ${method}`);
      // No program of another's runs what she writes with his rights, nor is its mode hers to change.
      chmodSync(shared, 0o6775);
      expect((await write(method, "/srv/shared", "program")).json).toMatchObject({ permissions: "0775" });
      expect(await write(method, "/srv/shared", "x", { "x-file-mode": "0666" })).toMatchObject(denied);
      chmodSync(shared, 0o664);
      const appended = await guest.call(method, `/v1/files?${q("/srv/shared", "&append=true")}`, {
        raw: "+",
        headers: as,
      });
      expect(appended.status).toBe(200);
      expect(readFileSync(shared, "utf8")).toBe("program+");
      // Headers that name an owner need no rights of hers.
      expect(
        (await write(method, `/home/ann/given-${method}`, "x", { "x-file-owner": "root" })).json,
      ).toMatchObject({
        owner: "root",
        group: "ann",
      });
    },
  );

  it("makes, moves, copies, changes and deletes with her rights", async () => {
    expect((await post("/mkdir", { path: "/home/ann/d/e", parents: true })).json).toMatchObject({
      owner: "ann",
    });
    expect(await post("/mkdir", { path: "/srv/d" })).toMatchObject(denied);
    await write("PUT", "/home/ann/d/f");
    expect(
      await post("/move", { source: "/home/ann/d/f", destination: "/srv/f" }),
      "into another's directory",
    ).toMatchObject(denied);
    expect(await post("/move", { source: "/srv/shared", destination: "/home/ann/s" })).toMatchObject(denied);
    expect(await post("/copy", { source: "/etc/secret", destination: "/home/ann/s" })).toMatchObject(denied);
    expect(await post("/copy", { source: "/home/ann/secret", destination: "/home/ann/s" })).toMatchObject(
      denied,
    );
    expect(await post("/copy", { source: "/home/ann/d/f", destination: "/srv/f" })).toMatchObject(denied);
    const copied = await post("/copy", {
      source: "/srv/shared",
      destination: "/home/ann/copied",
      recursive: true,
    });
    expect(copied.json).toMatchObject({ owner: "ann", group: "crew", permissions: "0664" });
    chmodSync(onDisk("home/ann/d"), 0o555);
    const tree = { source: "/home/ann/d", destination: "/home/ann/tree", recursive: true };
    expect((await post("/copy", tree)).json).toMatchObject({ owner: "ann", permissions: "0555" });
    chmodSync(onDisk("home/ann/d"), 0o755);
    expect(await post("/chmod", { path: "/etc/secret", mode: "0644" })).toMatchObject(denied);
    expect(await post("/chmod", { path: "/home/ann/secret", mode: "0644" })).toMatchObject(denied);
    expect((await post("/chmod", { path: "/home/ann/copied", mode: "0600" })).json).toMatchObject({
      permissions: "0600",
    });
    expect(await post("/chown", { path: "/home/ann/copied", user: "root" })).toMatchObject(denied);
    expect((await post("/chown", { path: "/home/ann/copied", group: "crew" })).status).toBe(200);
    const remove = (path: string): Promise<Answer> =>
      guest.call("DELETE", `/v1/files?${q(path, "&recursive=true")}`, { headers: as });
    expect(await remove("/srv/shared")).toMatchObject(denied);
    expect(await remove("/srv/sticky/roots")).toMatchObject(denied);
    expect((await remove("/home/ann/d")).status).toBe(200);
    expect(lstatSync(onDisk("home/ann/secret")).isSymbolicLink()).toBe(true);
  });

  it("unpacks what is hers, whoever packed it", async () => {
    const packed = await guest.exec({
      cmd: [
        "sh",
        "-c",
        "mkdir -p /tmp/t/in && echo x > /tmp/t/in/file && tar -C /tmp/t -cf /home/ann/t.tar .",
      ],
    });
    expect(packed.stderr).toBe("");
    const raw = readFileSync(onDisk("home/ann/t.tar"));
    const unpack = (path: string): Promise<Answer> =>
      guest.call("POST", `/v1/files/archive?${q(path)}`, { raw, headers: as });
    expect((await unpack("/home/ann/unpacked")).json).toMatchObject({ ok: true });
    expect(statSync(onDisk("home/ann/unpacked/in/file")).uid).toBe(ann);
    expect(await unpack("/srv/unpacked")).toMatchObject(denied);
  });

  it("takes the user by header or query, by name or number, with a group; and no other", async () => {
    const touch = (more: string, headers: Record<string, string> = {}): Promise<Answer> =>
      guest.call("PUT", `/v1/files?${q("/srv/sticky/made", more)}`, { raw: "x", headers });
    for (const [more, headers] of [
      ["&as_user=ann", {}],
      ["&as_user=1000", {}],
      ["&as_user=ann", as],
      ["", { "x-file-user": "1000" }],
    ] as const) {
      expect((await touch(more, headers)).json).toMatchObject({ owner: "ann", group: "ann" });
      await guest.call("DELETE", `/v1/files?${q("/srv/sticky/made")}`);
    }
    expect((await touch("&as_user=ann:crew")).json).toMatchObject({ owner: "ann", group: "crew" });
    await guest.call("DELETE", `/v1/files?${q("/srv/sticky/made")}`);
    expect((await touch("&as_user=root:crew")).json).toMatchObject({ owner: "root", group: "crew" });
    for (const [more, headers, field] of [
      ["&as_user=nobody-here", {}, "as_user"],
      ["", { "x-file-user": "nobody-here" }, "x-file-user"],
      ["&as_user=", {}, "as_user"],
      ["&as_user=bob", as, "as_user"],
      ["&as_user=a%00b", {}, "as_user"],
      [`&as_user=${"n".repeat(300)}`, {}, "as_user"],
      ["&as_user=ann:nothing", {}, "as_user"],
    ] as const) {
      const refused = await touch(more, headers);
      expect(refused).toMatchObject({ status: 400, json: { code: "invalid_argument" } });
      expect(refused.json["message"]).toContain(field);
    }
    const unpacked = await guest.call("GET", `/v1/files/archive?${q("/srv", "&as_user=nobody-here")}`);
    expect(unpacked).toMatchObject({ status: 400 });
    expect(unpacked.json["message"]).toContain("as_user");
  });

  it("keeps rights apart when requests come at once", async () => {
    const asked = Array.from({ length: 120 }, (_, index) =>
      index % 2 === 0 ? guest.call("GET", `/v1/files?${q("/etc/secret")}`) : get("", "/etc/secret"),
    );
    const statuses = (await Promise.all(asked)).map(({ status }) => status);
    expect(statuses).toEqual(statuses.map((_, index) => (index % 2 === 0 ? 200 : 403)));
  });
});
