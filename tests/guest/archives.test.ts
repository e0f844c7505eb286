import { execFileSync } from "node:child_process";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Answer, token } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestFixture, isRoot, startGuestAgent, until } from "./guest-fixture.ts";

let guest: GuestFixture;
beforeAll(async () => {
  if (isRoot) guest = await startGuestAgent();
});
afterAll(() => guest?.close());

const q = (path: string): string => `path=${encodeURIComponent(path)}`;
const onDisk = (path: string): string => join(guest.diskPath, "fs", path);
const write = (path: string, raw: string | Buffer): Promise<Answer> =>
  guest.call("POST", `/v1/files?${q(path)}`, { raw });
const stat = (path: string): Promise<Answer> => guest.call("GET", `/v1/files/stat?${q(path)}`);
const names = (answer: Answer): string[] =>
  (answer.json["entries"] as { path: string }[]).map(({ path }) => path);

const archive = (method: string, path: string, raw?: Buffer): Promise<Answer> =>
  guest.call(method, `/v1/files/archive?${q(path)}`, raw === undefined ? {} : { raw });

/** A tar made by Python, in its default (pax) format, from statements on `t`. */
function pythonTar(statements: string, format = "PAX_FORMAT"): Buffer {
  const script = `import tarfile,io,sys
out=io.BytesIO(); t=tarfile.open(fileobj=out,mode='w',format=tarfile.${format})
def add(name,data=b'',**k):
  i=tarfile.TarInfo(name); i.size=len(data)
  for n,v in k.items(): setattr(i,n,v)
  t.addfile(i,io.BytesIO(data))
${statements}
t.close(); sys.stdout.buffer.write(out.getvalue())`;
  return execFileSync("python3", ["-c", script], { maxBuffer: 1 << 28 });
}

/** A download as bytes. */
async function download(path: string): Promise<Buffer> {
  const response = await fetch(`http://127.0.0.1:${guest.port}/v1/files/archive?${q(path)}`, {
    headers: { authorization: `Bearer ${token()}` },
  });
  expect(response.status).toBe(200);
  expect(response.headers.get("content-type")).toBe("application/x-tar");
  return Buffer.from(await response.arrayBuffer());
}

describe.skipIf(!isRoot)("archives", () => {
  it("goes out and comes in the same", async () => {
    const long = "n".repeat(120);
    const script = `mkdir -p 'src/${long}/größe' && cd src && echo a > a && ln a hard && ln -s ../a soft && chown 1000:2000 a && chmod 4755 a && mkfifo fifo && echo deep > '${long}/größe/${long}' && seq 1 500000 > big && touch -d '2001-02-03 04:05:06' big && touch -d '1969-12-31 23:59:58.75 UTC' a && chown 3000000:4294967294 soft -h && chown 2097152 big && mkdir -m 500 hollow`;
    expect(await guest.exec({ cmd: ["sh", "-c", script] })).toMatchObject({ exit_code: 0 });
    const tar = await download("/root/src");
    expect(tar.length % 512).toBe(0);
    const listed = execFileSync("tar", ["-tvf", "-", "--quoting-style=literal"], { input: tar }).toString();
    expect(listed).toContain(`${long}/größe/${long}`);
    expect(await archive("POST", "/root/copy/here", tar)).toMatchObject({
      status: 200,
      json: { ok: true, skipped: 0 },
    });
    const listing = (dir: string) =>
      guest.exec({
        cmd: [
          "sh",
          "-c",
          `cd ${dir} && find . -type d -o -printf '%p %y %m %u %g %s %T@ %l\\n' | sort; find . -type f | sort | xargs md5sum; find . -type d -printf '%p %m\\n' | sort`,
        ],
      });
    expect((await listing("/root/copy/here")).stdout).toBe((await listing("/root/src")).stdout);
    expect(lstatSync(onDisk("root/copy/here/a")).nlink).toBe(2);
    expect(lstatSync(onDisk("root/copy/here/big")).mtimeMs).toBe(Date.parse("2001-02-03T04:05:06Z"));
  });

  it("takes archives of GNU tar and Python, gzip too", async () => {
    const long = "l".repeat(150);
    const tar = pythonTar(
      `add('größe/${long}/${long}',b'deep'); add('plain',b'plain',mode=0o640,uid=1000,mtime=1.5)`,
    );
    expect((await archive("POST", "/in/pax", tar)).json).toEqual({ ok: true, entries: 2, skipped: 0 });
    expect(readFileSync(onDisk(`in/pax/größe/${long}/${long}`), "utf8")).toBe("deep");
    expect((await stat("/in/pax/plain")).json).toMatchObject({ permissions: "0640", owner: "ann" });
    const gnu = execFileSync("tar", ["-C", "/usr/lib", "-czf", "-", "--format=gnu", "os-release", "apt"]);
    expect(await archive("POST", "/in/gnu", gnu)).toMatchObject({ status: 200 });
    expect(statSync(onDisk("in/gnu/apt/methods/http")).size).toBe(statSync("/usr/lib/apt/methods/http").size);
  });

  it("lets nothing escape, and skips what tries to", async () => {
    const tar = pythonTar(
      "add('../../escaped',b'x'); add('/absolute',b'y'); add('a/../../b',b'z'); add('evil',type=b'2',linkname='/etc'); add('evil/through-link',b'w'); add('hard',type=b'1',linkname='../../../etc/passwd'); add('ok',b'ok')",
    );
    expect((await archive("POST", "/jail/in", tar)).json).toEqual({
      ok: true,
      entries: 3,
      skipped: 4,
      skipped_entries: [
        { path: "../../escaped", reason: "leads outside the directory" },
        { path: "a/../../b", reason: "leads outside the directory" },
        { path: "hard", reason: "leads outside the directory" },
        { path: "evil", reason: "a directory lies in its place" },
      ],
    });
    expect(
      existsSync(onDisk("escaped")) || existsSync(onDisk("jail/escaped")) || existsSync("/escaped"),
    ).toBe(false);
    expect(readFileSync(onDisk("jail/in/absolute"), "utf8")).toBe("y");
    expect(existsSync("/etc/through-link")).toBe(false);
    expect(existsSync(onDisk("etc/through-link"))).toBe(false);
    expect(readFileSync(onDisk("jail/in/evil/through-link"), "utf8")).toBe("w");
    expect(readFileSync(onDisk("jail/in/ok"), "utf8")).toBe("ok");
  });

  it("makes nothing outside, by whatever links: those of the archive, and those that were there", async () => {
    mkdirSync(onDisk("outside"), { recursive: true });
    mkdirSync(onDisk("inside/real"), { recursive: true });
    writeFileSync(onDisk("outside/secret"), "secret");
    symlinkSync("../outside", onDisk("inside/was"));
    symlinkSync("/inside/real", onDisk("inside/within"));
    const statements = [
      "add('l',type=b'2',linkname='/outside'); add('l/a',b'x')", // at once
      "add('m',type=b'2',linkname='n'); add('n',type=b'2',linkname='../outside'); add('m/b',b'x')", // over another
      "add('d/e',type=b'2',linkname='../../outside'); add('d/e/c',type=b'5')",
      "add('was/d',b'x'); add('was/e',type=b'5'); add('was/f',type=b'2',linkname='x'); add('was/g',type=b'6')",
      "add('h',type=b'1',linkname='was/secret'); add('k',type=b'1',linkname='l/secret')",
      "add('within/fine',b'fine')",
    ];
    for (const statement of [...statements, statements.join("; ")]) {
      expect((await archive("POST", "/inside", pythonTar(statement))).status).toBe(200);
      // And once more, when the links of the first time are there.
      expect((await archive("POST", "/inside", pythonTar(statement))).status).toBe(200);
    }
    expect(readdirSync(onDisk("outside"))).toEqual(["secret"]);
    expect(lstatSync(onDisk("outside/secret")).nlink).toBe(1);
    expect(readFileSync(onDisk("inside/real/fine"), "utf8")).toBe("fine");
    // A directory takes the place of a link that leads outside; what the link led to stays as it was.
    expect(
      (await archive("POST", "/inside", pythonTar("add('was',type=b'5',mode=0o700)"))).json,
    ).toMatchObject({
      entries: 1,
    });
    expect(lstatSync(onDisk("inside/was")).isDirectory()).toBe(true);
    expect(statSync(onDisk("outside")).mode & 0o777).toBe(0o755);
  });

  it("makes links that are met before what they lead to, and the last of one name", async () => {
    const tar = pythonTar(
      "add('bin',type=b'2',linkname='usr/bin'); add('usr/bin/sh',b'#!'); add('soft',type=b'2',linkname='gone'); add('copy',type=b'1',linkname='soft'); add('early',type=b'1',linkname='late'); add('late',b'late'); add('twice',type=b'2',linkname='a'); add('twice',b'file'); add('again',type=b'2',linkname='a'); add('again',type=b'2',linkname='b')",
    );
    expect((await archive("POST", "/links", tar)).json).toEqual({ ok: true, entries: 8, skipped: 0 });
    const { json } = await guest.call("GET", "/v1/files/list?path=/links");
    const targets = (json["entries"] as { name: string; symlink_target: string }[]).map(
      ({ name, symlink_target }) => `${name} ${symlink_target}`,
    );
    expect(targets).toEqual([
      "again b",
      "bin usr/bin",
      "copy gone",
      "early ",
      "late ",
      "soft gone",
      "twice ",
      "usr ",
    ]);
    expect(readFileSync(onDisk("links/early"), "utf8")).toBe("late");
  });

  it("takes owners, times and attributes as they are", async () => {
    const tar = pythonTar(
      `add('pax',b'',uid=3000000,gid=4294967294,mtime=-1.25); add('frac',b'',mtime=1700000000.123456789)
add('old',b'',pax_headers={'mtime':'-7000000000.5','atime':'12.000000001','SCHILY.xattr.user.note':'kept'})
add('global',b''); add('nobody',b'',uid=4294967295)`,
    );
    const gnu = pythonTar("add('gnu',b'',uid=3000000,gid=2097152,mtime=-5)", "GNU_FORMAT");
    expect((await archive("POST", "/meta", tar)).json).toEqual({
      ok: true,
      entries: 4,
      skipped: 1,
      skipped_entries: [{ path: "nobody", reason: "has an owner, a mode or a time that cannot be" }],
    });
    expect((await archive("POST", "/meta", gnu)).json).toEqual({ ok: true, entries: 1, skipped: 0 });
    const told = await guest.exec({
      cmd: ["sh", "-c", "cd /meta; TZ=UTC stat -c '%n %u %g %.9Y' pax frac old gnu; stat -c %.9X old"],
    });
    expect(told.stdout.split("\n")).toEqual([
      "pax 3000000 4294967294 -1.250000000",
      expect.stringMatching(/^frac 0 0 1700000000\.1234567\d\d$/),
      expect.stringMatching(/^old 0 0 -\d+\.\d+$/), // as far back as the file system can say
      "gnu 3000000 2097152 -5.000000000",
      "12.000000001",
      "",
    ]);
    const note = await guest.exec({
      cmd: ["python3", "-c", "import os; print(os.getxattr('/meta/old','user.note'))"],
    });
    const back = await download("/meta");
    if (note.exit_code === 0) {
      expect(note.stdout).toBe("b'kept'\n");
      expect(back.includes("SCHILY.xattr.user.note=kept\n")).toBe(true);
    }
    // GNU tar 1.34 itself shows fractions before 1970 wrongly.
    const script =
      "import tarfile,sys; t=tarfile.open(fileobj=sys.stdin.buffer,mode='r|'); print([(i.name,i.uid,i.gid,i.mtime) for i in t if i.name=='pax'])";
    const listed = execFileSync("python3", ["-c", script], { input: back }).toString();
    expect(listed).toBe("[('pax', 3000000, 4294967294, -1.25)]\n");
  });

  it("leaves out what cannot be made, and makes the rest", async () => {
    await write("/rest/is-directory/file", "x");
    await write("/rest/is-file", "x");
    const tar = pythonTar(
      "add('is-directory',b'x'); add('is-file/in',b'x'); add('is-file/deep/er',type=b'2',linkname='x'); add('n'*300,b'x'); add('odd',b'x'*700,type=b'Z'); add('socket',type=b'1',linkname='no/such'); add('last',b'last')",
    );
    expect((await archive("POST", "/rest", tar)).json).toMatchObject({ entries: 1, skipped: 6 });
    expect(readFileSync(onDisk("rest/last"), "utf8")).toBe("last");
    // What no file system can hold, of every kind; a name that would pass for a line of the report.
    await guest.exec({
      cmd: ["sh", "-c", "cd /rest; ln -s b a; ln -s a b; ln -s nowhere dangling; echo x > once"],
    });
    const odd = pythonTar(
      "add('empty',type=b'2'); add('endless',type=b'2',linkname='a/'*2100); add('a/x',b'x'); add('dangling/x',b'x'); add('owner',b'x',uid=1<<40,pax_headers={'uid':'4294967295'}); add('c\\rdone 9 9/../..',b'x'); add('attribute',b'x',pax_headers={'SCHILY.xattr.user.a':'y'*60000}); add('before',b'x',pax_headers={'mtime':'-99999999999'}); add('after',b'x',pax_headers={'mtime':'99999999999'})",
    );
    expect((await archive("POST", "/rest", odd)).json).toEqual({
      ok: true,
      entries: 3,
      skipped: 6,
      skipped_entries: [
        { path: "a/x", reason: "lies behind links that lead in a ring" },
        { path: "dangling/x", reason: "lies behind a link that leads nowhere" },
        { path: "owner", reason: "has an owner, a mode or a time that cannot be" },
        { path: "c\rdone 9 9/../..", reason: "leads outside the directory" },
        { path: "empty", reason: "links to nothing, or has a name that cannot be" },
        { path: "endless", reason: "has a name that is too long" },
      ],
    });
    expect(statSync(onDisk("rest/before")).mtimeMs).toBe(-(2 ** 31) * 1_000);
    expect(statSync(onDisk("rest/after")).mtimeMs).toBe(9_223_372_035_000);
    const many = pythonTar("for i in range(1000): add('../%d' % i,b'x')\nadd('ok',b'')");
    const answer = (await archive("POST", "/rest", many)).json;
    expect(answer).toMatchObject({ entries: 1, skipped: 1_000 });
    expect(answer["skipped_entries"]).toHaveLength(16);
  });

  it("replaces files, and keeps links to directories", async () => {
    await write("/over/file", "old");
    symlinkSync("real", onDisk("over/dir"));
    mkdirSync(onDisk("over/real"));
    writeFileSync(onDisk("over/was-link-target"), "safe");
    symlinkSync("was-link-target", onDisk("over/link"));
    const tar = pythonTar(
      "add('file',b'new'); add('dir',type=b'5',mode=0o755); add('dir/in',b'in'); add('link',b'replaced')",
    );
    expect((await archive("POST", "/over", tar)).status).toBe(200);
    expect(readFileSync(onDisk("over/file"), "utf8")).toBe("new");
    expect(readFileSync(onDisk("over/real/in"), "utf8")).toBe("in");
    expect(readFileSync(onDisk("over/was-link-target"), "utf8")).toBe("safe");
    expect(readFileSync(onDisk("over/link"), "utf8")).toBe("replaced");
  });

  it.each<[string, () => Buffer]>([
    ["no archive", () => Buffer.from("hello ".repeat(200))],
    ["an empty body", () => Buffer.alloc(0)],
    ["a cut archive", () => pythonTar("add('a',b'x'*5000)").subarray(0, 2_000)],
    [
      "a broken header",
      () => Buffer.concat([pythonTar("add('a',b'x')").subarray(0, 1_024), Buffer.alloc(512, "z")]),
    ],
    ["broken gzip", () => Buffer.from([0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5, 6, 7])],
  ])("refuses %s", async (_what, make) => {
    expect(await archive("POST", "/refused", make())).toMatchObject({
      status: 400,
      json: { code: "invalid_argument" },
    });
  });

  it("answers for what is no directory", async () => {
    expect(await archive("GET", "/nothing-here")).toMatchObject({ status: 404 });
    expect(await archive("GET", "/etc/passwd")).toMatchObject({ status: 400 });
    expect(await archive("POST", "/etc/passwd", pythonTar("add('a')"))).toMatchObject({ status: 400 });
    expect((await download("/etc")).length).toBeGreaterThan(1_024);
  });

  it("ends with its client", async () => {
    await guest.exec({ cmd: ["sh", "-c", "mkdir /huge; head -c 200000000 /dev/zero > /huge/zeros"] });
    const socket = connect(guest.port, "127.0.0.1");
    socket.write(
      `GET /v1/files/archive?path=/huge HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token()}\r\n\r\n`,
    );
    const running = async () =>
      (await guest.exec({ cmd: ["ps", "-eo", "args"] })).stdout.includes("tar-create");
    await until("it is being packed", running);
    socket.destroy();
    await until("packing ended", async () => !(await running()));
    await guest.call("DELETE", "/v1/files?path=/huge&recursive=true");
  });

  it("says when the disk is full", async () => {
    const full = pythonTar("add('a',b'x'*3000000)");
    expect(
      await guest.exec({ cmd: ["sh", "-c", "mkdir /small && mount -t tmpfs -o size=1m tmpfs /small"] }),
    ).toMatchObject({ exit_code: 0 });
    expect(await archive("POST", "/small", full)).toMatchObject({
      status: 507,
      json: { code: "resource_exhausted" },
    });
    await guest.call("DELETE", "/v1/files?path=/small/a");
    await write("/small/a", Buffer.alloc(700_000, "a"));
    expect(await write("/small/b", Buffer.alloc(700_000, "b"))).toMatchObject({ status: 507 });
    expect(names(await guest.call("GET", "/v1/files/list?path=/small"))).toEqual(["/small/a"]);
  });
});

describe.skipIf(!isRoot)("trees", () => {
  /** Directories one in the other, a file in each: 1,500 are deeper than any path. */
  const digAbyss = (path: string, levels: number): Promise<{ exit_code: number }> => {
    const script = `import os\nos.mkdir('${path}'); os.chdir('${path}')\nfor i in range(${levels}): os.mkdir('deeper'); os.chdir('deeper'); open('f','w').close()`;
    return guest.exec({ cmd: ["python3", "-c", script] });
  };
  const pidOfInit = async (): Promise<string> =>
    (await guest.exec({ cmd: ["stat", "-c", "%Z", "/proc/1"] })).stdout;

  it("lists, moves, packs and deletes a tree that is deeper than any path", async () => {
    expect((await digAbyss("/abyss", 1_500)).exit_code).toBe(0);
    const before = await pidOfInit();
    const list = await guest.call("GET", "/v1/files/list?path=/abyss&depth=100000");
    expect(list).toMatchObject({ status: 200, json: { truncated: true } });
    const reached = Array.from({ length: 600 }, (_, level) => `/abyss${"/deeper".repeat(level + 1)}`)
      .flatMap((path) => [path, `${path}/f`])
      .filter((path) => path.length <= 4_095);
    expect(names(list)).toEqual(reached.sort());
    const move = { source: "/abyss", destination: "/dev/shm/abyss" };
    expect(await guest.call("POST", "/v1/files/move", { body: move })).toMatchObject({ status: 200 });
    expect(existsSync(onDisk("abyss"))).toBe(false);
    const count = `import os\nn=0; os.chdir('/dev/shm/abyss')\nwhile os.path.isdir('deeper'): os.chdir('deeper'); n+=os.path.isfile('f')\nprint(n)`;
    expect((await guest.exec({ cmd: ["python3", "-c", count] })).stdout).toBe("1500\n");
    const tar = await download("/dev/shm/abyss");
    expect((await archive("POST", "/unpacked", tar)).json).toMatchObject({ entries: 3_000, skipped: 0 });
    expect(
      (await guest.exec({ cmd: ["python3", "-c", count.replace("/dev/shm/abyss", "/unpacked")] })).stdout,
    ).toBe("1500\n");
    for (const path of ["/dev/shm/abyss", "/unpacked"])
      expect((await guest.call("DELETE", `/v1/files?path=${path}&recursive=true`)).json).toEqual({
        ok: true,
      });
    expect(await pidOfInit()).toBe(before);
  });

  it("keeps few descriptors open in a deep tree, and needs no more for eight at once", async () => {
    expect((await digAbyss("/shaft", 500)).exit_code).toBe(0);
    const lists = await Promise.all(
      Array.from({ length: 8 }, () => guest.call("GET", "/v1/files/list?path=/shaft&depth=1000")),
    );
    for (const list of lists) expect(names(list)).toHaveLength(1_000);
    await guest.call("DELETE", "/v1/files?path=/shaft&recursive=true");
  });

  it("neither lists nor packs what it is about to put in place elsewhere", async () => {
    await guest.exec({ cmd: ["sh", "-c", "mkdir /tmp/t && echo x > /tmp/t/.cloche-tmp-0123456789abcdef"] });
    expect((await guest.call("GET", "/v1/files/list?path=/tmp/t")).json).toMatchObject({
      entries: [],
      truncated: false,
    });
    expect((await guest.call("GET", "/v1/files/list?path=/tmp&depth=1")).json).toMatchObject({
      truncated: false,
    });
    expect((await download("/tmp/t")).length).toBe(1_024);
    await guest.call("DELETE", "/v1/files?path=/tmp/t&recursive=true");
  });
});
