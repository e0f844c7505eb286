/**
 * A real guest on plain Linux for tests: the native program compiled from source, a root made of the machine's own /usr
 * (read-only) and a few files, and an agent before it. Needs root and gcc.
 */
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { release, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildNative, nativeSources } from "@cloche/agent/build-native";
import { type AgentFixture, startAgent } from "../../packages/agent/src/testing/agent-fixture.ts";
import { type GuestOptions, NativeSpawner } from "../../packages/agent/src/spawner/index.ts";

export const isRoot = process.getuid?.() === 0;
if (!isRoot) console.warn("tests/guest are skipped: making namespaces and mounts needs root");

/** Tests of this folder run inside a gVisor sandbox as well (tests/guest/in-gvisor.sh). */
export const isGvisor = readFileSync("/proc/version", "utf8").includes("gvisor") || release() === "4.4.0";

let built: Promise<string> | undefined;

/** The compiled guest program, kept in the package's dist folder for as long as its sources are the same. */
export function guestBinary(): Promise<string> {
  const given = process.env["CLOCHE_GUEST_BINARY"]; // a sandbox that tests run in may have no compiler
  if (given) return Promise.resolve(given);
  built ??= (async () => {
    const hash = createHash("sha256");
    for (const path of await nativeSources()) hash.update(readFileSync(path));
    const name = `cloche-guest-${hash.digest("hex").slice(0, 16)}`;
    const binary = fileURLToPath(new URL(`../../packages/agent/dist/${name}`, import.meta.url));
    if (!existsSync(binary)) await buildNative(binary);
    return binary;
  })();
  return built;
}

export const maxProcesses = 150;
export const guestOptions: Omit<GuestOptions, "root"> = {
  maxProcesses,
  mounts: [{ source: "/usr", target: "/usr", readOnly: true }],
};

/** A disk whose tree has a shell, Python and the users root and ann (also in group crew). */
export function makeDisk(): string {
  const diskPath = mkdtempSync(join(tmpdir(), "cloche-guest-disk-"));
  const root = join(diskPath, "fs");
  for (const name of ["etc", "root", "usr", "home/ann"]) mkdirSync(join(root, name), { recursive: true });
  for (const name of ["bin", "sbin", "lib", "lib64"]) symlinkSync(`usr/${name}`, join(root, name));
  writeFileSync(
    join(root, "etc/passwd"),
    "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n",
  );
  writeFileSync(join(root, "etc/group"), "root:x:0:\nann:x:1000:\ncrew:x:2000:bob,ann\n");
  mkdirSync(join(diskPath, "cloche"));
  return diskPath;
}

export interface GuestFixture extends AgentFixture {
  native: NativeSpawner;
  exec(body: Record<string, unknown>, headers?: Record<string, string>): Promise<ExecAnswer>;
}

export interface ExecAnswer {
  status: number;
  stdout: string;
  stderr: string;
  exit_code: number;
  ok: boolean;
  timed_out: boolean;
  duration_ms: number;
  code?: string;
  message?: string;
  [field: string]: unknown;
}

/** An assigned agent over a real guest. */
export async function startGuestAgent(): Promise<GuestFixture> {
  const diskPath = makeDisk();
  const native = new NativeSpawner(await guestBinary(), guestOptions);
  const fixture = await startAgent({ diskPath, spawner: native });
  const assigned = await fixture.assign({ env: { SANDBOX_WIDE: "yes" } });
  if (assigned.status !== 200) throw new Error(`assign: ${assigned.text}`);
  return {
    ...fixture,
    native,
    exec: async (body, headers = {}) => {
      const { status, json } = await fixture.call("POST", "/v1/exec", { body, headers });
      return { ...json, status } as unknown as ExecAnswer;
    },
    close: async () => {
      await fixture.close();
      rmSync(diskPath, { recursive: true, force: true });
    },
  };
}

/** Waits until `check` says so; fails the test after ten seconds. */
export async function until(what: string, check: () => boolean | Promise<boolean>): Promise<void> {
  for (const deadlineMs = Date.now() + 10_000; Date.now() < deadlineMs; ) {
    if (await check()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`never happened: ${what}`);
}
