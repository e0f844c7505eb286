// Where runsc comes from: the operator's own, looked at before it is used, and the build of the pinned module, with a `go` of the
// test's own where the real one takes minutes. The real build is the suite's set-up; its result is looked at here.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { changes } from "../../packages/artifacts/src/gvisor/runsc-changes.ts";
import { obtainRunsc } from "../../packages/artifacts/src/gvisor/runsc.ts";
import {
  expectedSha256,
  pinnedModule,
  readManifest,
  sha256Of,
} from "../../packages/artifacts/src/gvisor/runsc-build.ts";

const fixture = (name: string): string => fileURLToPath(new URL(`fixtures/${name}`, import.meta.url));
const lists = ["runsc/boot/filter/config", "runsc/fsgofer/filter/config"];

let programs: string;
let says: string;
beforeAll(() => {
  programs = mkdtempSync(join(tmpdir(), "cloche-runsc-programs-"));
  says = join(programs, "says");
  execFileSync("gcc", ["-O1", "-o", says, fixture("says.c")]);
});
afterAll(() => rmSync(programs, { recursive: true, force: true }));

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-runsc-"));
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(folder, { recursive: true, force: true });
});

describe("CLOCHE_RUNSC", () => {
  /** A program that answers --version with it. */
  const runscOf = (version: string, path = join(folder, "runsc")): string => {
    copyFileSync(says, path);
    writeFileSync(`${path}.says`, `runsc version ${version}\nspec: 1.2.1\n`);
    return path;
  };
  const obtain = (own: string) => obtainRunsc(join(folder, "cache"), own, () => undefined);

  test("is a binary or the folder of a release, and its version and day are told", async () => {
    const path = runscOf("20260905.0");
    const released = new Date("2026-09-05T00:00:00Z");
    expect(await obtain(path)).toEqual({ path, version: "20260905.0", released });
    expect(await obtain(folder)).toEqual({ path, version: "20260905.0", released });
    runscOf("release-20261116.0");
    mkdirSync(join(folder, "gvisor-bin"));
    expect(await obtain(folder)).toMatchObject({ path, version: "release-20261116.0" });
    expect(existsSync(join(folder, "cache"))).toBe(false);
  });

  const wrong: Record<string, { make: () => string; says: RegExp }> = {
    missing: { make: () => join(folder, "no"), says: /CLOCHE_RUNSC is .*no, which does not exist/ },
    "a folder without runsc": {
      make: () => folder,
      says: /a folder without runsc in it; a release unpacked there has runsc and gvisor-bin\//,
    },
    "a text file": {
      make: () => {
        writeFileSync(join(folder, "text"), "#!/bin/sh\nexec runsc\n", { mode: 0o755 });
        return join(folder, "text");
      },
      says: /is no Linux program \(ELF\); name the runsc binary itself/,
    },
    "an empty file": {
      make: () => {
        writeFileSync(join(folder, "empty"), "", { mode: 0o755 });
        return join(folder, "empty");
      },
      says: /is no Linux program/,
    },
    "a device": { make: () => "/dev/null", says: /is not a file/ },
    "not executable": {
      make: () => {
        const path = runscOf("20260905.0");
        chmodSync(path, 0o644);
        return path;
      },
      says: /is not executable; run: chmod \+x/,
    },
    "of another architecture": {
      make: () => {
        const path = runscOf("20260905.0");
        const bytes = readFileSync(path);
        bytes.writeUInt16LE(process.arch === "arm64" ? 62 : 183, 18);
        writeFileSync(path, bytes);
        return path;
      },
      says: /is built for (arm64|x64); this machine is (x64|arm64)/,
    },
    "another program": { make: () => "/bin/true", says: /is not runsc: --version answers/ },
    "too old": {
      make: () => runscOf("0.0~20240729.0"),
      says: /is gVisor 0\.0~20240729\.0; it must be 20260905 or newer: unset CLOCHE_RUNSC/,
    },
    "a day too old": { make: () => runscOf("release-20260904.0"), says: /it must be 20260905 or newer/ },
    "built without a version": {
      make: () => runscOf("VERSION_MISSING"),
      says: /calls itself VERSION_MISSING, which names no release/,
    },
    "one that wants gvisor-bin beside it": {
      make: () => runscOf("release-20261116.0"),
      says: /needs the programs of its release in .*\/gvisor-bin\/: unpack the whole release/,
    },
  };
  for (const [name, { make, says: sentence }] of Object.entries(wrong))
    test(`is refused in words when it is ${name}`, async () => {
      const failure = await obtain(make()).catch((error: Error) => error);
      expect(failure).toMatchObject({ name: "SetupError", message: expect.stringMatching(sentence) });
      expect((failure as Error).message).toContain("docs/operations.md");
    });
});

describe("the build", () => {
  let cache: string;
  let tools: string;
  beforeEach(() => {
    cache = join(folder, "cache");
    tools = join(folder, "tools");
    for (const list of lists) {
      mkdirSync(join(tools, "module", list), { recursive: true });
      writeFileSync(
        join(tools, "module", list, "config_precompiled.go"),
        "\tprograms := make([]precompiledseccomp.Program, len(opts))\n",
      );
    }
    for (const { file, before } of changes) {
      mkdirSync(join(tools, "module", file, ".."), { recursive: true });
      writeFileSync(join(tools, "module", file), before);
    }
    copyFileSync(fixture("fake-go.sh"), join(tools, "go"));
    chmodSync(join(tools, "go"), 0o755);
    copyFileSync(says, join(tools, "program"));
    writeFileSync(join(tools, "sum"), pinnedModule.sum);
    writeFileSync(join(tools, "version"), pinnedModule.toolchain);
  });
  const path = (): string => `${tools}:/usr/bin:/bin`;
  const obtain = () => obtainRunsc(cache, undefined, () => undefined, path());
  const builds = (): number => readFileSync(join(tools, "builds"), "utf8").split("\n").length - 1;
  /** Of the cache, without locks. */
  const names = (): string[] => readdirSync(cache).filter((name) => !name.startsWith(".lock"));
  const child = (): ChildProcess =>
    spawn(process.execPath, [fixture("obtain-runsc.ts"), cache, path()], {
      stdio: ["ignore", "pipe", "inherit"],
    });

  test("leaves the program and what it was made of, and nothing of Go", async () => {
    const runsc = await obtain();
    expect(runsc).toMatchObject({
      version: pinnedModule.version,
      released: new Date("2026-09-05T00:00:00Z"),
    });
    const [name = ""] = names();
    expect(names()).toHaveLength(1);
    expect(readdirSync(join(cache, name)).toSorted()).toEqual(["manifest.json", "runsc"]);
    const manifest = await readManifest(join(cache, name));
    expect(manifest).toMatchObject({
      module: `${pinnedModule.module}@${pinnedModule.moduleVersion}`,
      version: pinnedModule.version,
      go: pinnedModule.toolchain,
      sha256: await sha256Of(says),
    });
    await obtain();
    expect(builds()).toBe(1);
  });

  test("is not changed by what the user has set for Go, and goes where their modules come from", async () => {
    vi.stubEnv("GOFLAGS", "-race");
    vi.stubEnv("GOTOOLCHAIN", "local");
    vi.stubEnv("CGO_ENABLED", "1");
    vi.stubEnv("GOAMD64", "v4");
    vi.stubEnv("SOME_SECRET", "s3cret");
    vi.stubEnv("GOPROXY", "http://modules.example");
    vi.stubEnv("HTTPS_PROXY", "http://proxy.example:3128");
    await obtain();
    const lines = readFileSync(join(tools, "environment"), "utf8").split("\n");
    for (const line of [
      "GOFLAGS=-modcacherw",
      `GOTOOLCHAIN=${pinnedModule.toolchain}`,
      "CGO_ENABLED=0",
      "GOAMD64=v1",
      "GOENV=off",
      "GOPROXY=http://modules.example",
      "HTTPS_PROXY=http://proxy.example:3128",
    ])
      expect(lines).toContain(line);
    expect(lines.join("\n")).not.toContain("s3cret");
  });

  test("refuses sources with another checksum", async () => {
    writeFileSync(join(tools, "sum"), "h1:AAAA=");
    await expect(obtain()).rejects.toThrow(/has the checksum h1:AAAA=, not the pinned h1:AU5/);
    expect(names()).toEqual([]);
    expect(existsSync(join(tools, "builds"))).toBe(false);
  });

  test("refuses sources in which the seccomp step does not find its place", async () => {
    writeFileSync(join(tools, "module", lists[0] ?? "", "config_precompiled.go"), "package config\n");
    await expect(obtain()).rejects.toThrow(/config_precompiled.go of gVisor is not as expected/);
  });

  test("says what the proxy said, what to do, and goes on at the next start", async () => {
    writeFileSync(join(tools, "no-proxy"), "");
    vi.stubEnv("GOPROXY", "http://127.0.0.1:1");
    const failure = await obtain().catch((error: Error) => error);
    expect(failure).toMatchObject({ name: "SetupError" });
    expect((failure as Error).message).toMatch(
      /failed: go mod download: go: Get "http:[^]*connection refused\n {2}repair: check that the Go module proxy/,
    );
    expect(names()).toEqual([]);
    rmSync(join(tools, "no-proxy"));
    await obtain();
    expect(builds()).toBe(1);
  });

  test("says how much space is missing before it begins", async () => {
    mkdirSync(cache);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=64m", "cloche-test", cache]);
    try {
      await expect(obtain()).rejects.toThrow(/needs 1\.8 GB of free space in .*, and there are 0\.1 GB/);
      expect(existsSync(join(tools, "asked"))).toBe(false);
    } finally {
      execFileSync("umount", [cache]);
    }
  });

  test("that is killed takes its compilers with it, and the next start begins anew", async () => {
    execFileSync("mkfifo", [join(tools, "hold")]);
    const first = child();
    await vi.waitUntil(() => existsSync(join(tools, "builds")), { timeout: 60_000, interval: 20 });
    first.kill("SIGKILL");
    await once(first, "exit");
    const compilers = (): string[] =>
      readdirSync("/proc").filter((pid) => {
        if (!/^\d+$/.test(pid)) return false;
        try {
          return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(join(tools, "go"));
        } catch {
          return false;
        }
      });
    await vi.waitUntil(() => compilers().length === 0, { timeout: 60_000, interval: 20 });
    expect(names().filter((name) => !name.startsWith(".tmp-gvisor-"))).toEqual([]);
    expect(names()).toHaveLength(1);
    rmSync(join(tools, "hold"));
    await obtain();
    expect(builds()).toBe(2);
    expect(names()).toEqual([expect.stringMatching(/^gvisor-[0-9a-f]{16}$/)]);
  });

  test("is done once by two starts at the same time", async () => {
    const answers = [child(), child()].map(async (one) => {
      const chunks: Buffer[] = [];
      one.stdout?.on("data", (chunk: Buffer) => void chunks.push(chunk));
      const [code] = (await once(one, "close")) as [number];
      return { code, last: Buffer.concat(chunks).toString().trim().split("\n").at(-1) };
    });
    const [a, b] = await Promise.all(answers);
    expect(a).toMatchObject({ code: 0, last: expect.stringContaining(pinnedModule.version) });
    expect(b).toEqual(a);
    expect(builds()).toBe(1);
  });

  test("names the folder to remove when its result was damaged", async () => {
    const { path: program } = await obtain();
    chmodSync(program, 0o600);
    await expect(obtain()).rejects.toThrow(
      /the runsc in the cache does not start; remove .*gvisor-[0-9a-f]{16}/,
    );
    truncateSync(program, 0);
    chmodSync(program, 0o755);
    await expect(obtain()).rejects.toThrow(/the runsc in the cache .*; remove .*gvisor-[0-9a-f]{16}/);
    copyFileSync("/bin/true", program);
    await expect(obtain()).rejects.toThrow(/the runsc in the cache is not 20260905\.0; remove/);
  });
});

describe("the runsc of this machine", () => {
  const cache = process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache";
  let program: string;
  beforeAll(async () => {
    program = (await obtainRunsc(cache, undefined, () => undefined)).path;
  }, 1_200_000);

  test("is byte for byte the one that was built elsewhere", async () => {
    const manifest = await readManifest(join(program, ".."));
    expect(await sha256Of(program)).toBe(manifest.sha256);
    const expected = expectedSha256[process.arch];
    if (expected !== undefined) expect(manifest).toMatchObject({ sha256: expected, as_expected: true });
  });

  test("has the seccomp programs of sentry and gofer compiled in", () => {
    const logs = join(folder, "logs");
    mkdirSync(logs);
    const options = ["--root", join(folder, "root"), "--network=none", "--debug", `--debug-log=${logs}/`];
    execFileSync(program, [...options, "do", "true"], { stdio: "ignore" });
    const text = readdirSync(logs)
      .map((name) => readFileSync(join(logs, name), "utf8"))
      .join("");
    expect(text).not.toContain("No precompiled program found");
    expect(text.match(/Loaded precompiled seccomp instructions/g)?.length).toBe(2);
  });
});
