// Every defence that a row of SECURITY.md or docs/faults.md speaks of and that one edit switches off, with the test that must then fail.

export interface Defence {
  what: string;
  file: string;
  /** Must be in the file exactly once. */
  find: string;
  replace: string;
  project: "unit" | "host" | "e2e" | "guest" | "fuzz";
  test: string;
  /** Part of the test's name; default: the whole file. */
  named?: string;
  /** Needs sandboxes or a service: `npm run mutate-defences -- --all`. */
  heavy?: true;
}

export const defences: readonly Defence[] = [
  {
    what: "the agent takes RS256 only",
    file: "packages/agent/src/auth/token-verifier.ts",
    find: 'if (alg !== "RS256")',
    replace: "if (false)",
    project: "unit",
    test: "packages/agent/src/auth/token-verifier.test.ts",
  },
  {
    what: "the agent checks the signature",
    file: "packages/agent/src/auth/token-verifier.ts",
    find: 'if (!verify("RSA-SHA256"',
    replace: 'if (false && !verify("RSA-SHA256"',
    project: "unit",
    test: "packages/agent/src/auth/token-verifier.test.ts",
  },
  {
    what: "a token is good for its own sandbox only",
    file: "packages/protocol/src/tokens.ts",
    find: "if (aud !== sandboxId || sandbox_id !== sandboxId)",
    replace: "if (false)",
    project: "unit",
    test: "packages/agent/src/auth/token-verifier.test.ts",
  },
  {
    what: "a token expires",
    file: "packages/protocol/src/tokens.ts",
    find: "if (exp * 1000 <= nowMs)",
    replace: "if (false)",
    project: "unit",
    test: "packages/agent/src/auth/token-verifier.test.ts",
  },
  {
    what: "the host checks the signature on its routes",
    file: "packages/host/src/service/token-verifier.ts",
    find: 'if (!verify("RSA-SHA256"',
    replace: 'if (false && !verify("RSA-SHA256"',
    project: "unit",
    test: "packages/host/src/service/token-verifier.test.ts",
  },
  {
    what: "the edge asks for the token of the port's sandbox",
    file: "packages/edge/src/port-access.ts",
    find: "await verifier.verify(credentials.token, sandboxId);",
    replace: "void verifier;",
    project: "unit",
    test: "packages/edge/src/port-access.test.ts",
  },
  {
    what: "a port's cookie is good for pages of its own origin only",
    file: "packages/edge/src/port-access.ts",
    find: "if (credentials.fromCookie) checkSameOrigin(request);",
    replace: "void checkSameOrigin;",
    project: "unit",
    test: "packages/edge/src/port-access.test.ts",
    named: "pages of other origins",
  },
  {
    what: "another team's sandbox is not found",
    file: "packages/gateway/src/lifecycle/lifecycle.ts",
    find: "record === undefined || record.teamId !== caller.teamId",
    replace: "record === undefined",
    project: "unit",
    test: "packages/gateway/src/rpc/sandbox-service.test.ts",
    named: "another team",
  },
  {
    what: "secrets are kept out of the log",
    file: "packages/base/src/log.ts",
    find: 'paths: ["authorization", "headers.authorization", "token", "secret"]',
    replace: 'paths: ["nothing"]',
    project: "unit",
    test: "packages/base/src/log.test.ts",
  },
  {
    what: "a blob of an image is what its digest says",
    file: "packages/agent/src/oci/blobs.ts",
    find: "if (found !== expected)",
    replace: "if (false)",
    project: "unit",
    test: "packages/agent/src/oci/image-puller.test.ts",
  },
  {
    what: "a checkpoint's manifest is sealed",
    file: "packages/host/src/checkpoint/manifest.ts",
    find: 'if (!createHash("sha256").update(body).digest().equals(bytes.subarray(-digestBytes)))',
    replace: "if (false)",
    project: "host",
    test: "tests/host/checkpoint.test.ts",
    named: "every flipped byte",
  },
  {
    what: "each chunk of a checkpoint is what was written",
    file: "packages/host/src/checkpoint/archive.ts",
    find: "if (raw.length !== expected || !(await sha256(raw)).equals(chunk.sha256))",
    replace: "if (false)",
    project: "host",
    test: "tests/host/checkpoint.test.ts",
    named: "storage that reads",
  },
  {
    what: "a disk's setuid programs and devices are dead on the host",
    file: "packages/host/src/disk/disk.ts",
    find: "const MOUNT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOATIME;",
    replace: "const MOUNT_FLAGS = MS_NOATIME; void MS_NOSUID; void MS_NODEV;",
    project: "host",
    test: "tests/host/disk.test.ts",
    named: "setuid",
  },
  {
    what: "no sandbox reaches private addresses",
    file: "packages/host/src/network/rules.ts",
    find: "`add rule ${table} outbound ip daddr @special goto deny`,",
    replace: "",
    project: "host",
    test: "tests/host/network.test.ts",
    named: "reaches no private",
  },
  {
    what: "no sandbox sends under another's address",
    file: "packages/host/src/network/rules.ts",
    find: '`add rule ${table} spoof iifname "s*" iifname . ip saddr != @sources goto forged`,',
    replace: "",
    project: "host",
    test: "tests/host/network.test.ts",
    named: "under another address",
  },
  {
    what: "a damaged disk is no reason to drop the template",
    file: "packages/host/src/machine/gvisor/driver.ts",
    find: "if (error instanceof DiskFault) throw error;",
    replace: "void DiskFault;",
    project: "host",
    test: "tests/host/hostile-disk.test.ts",
    named: "superblock is refused",
    heavy: true,
  },
  {
    what: "a machine kept ready keeps its own secret",
    file: "packages/host/src/machine/gvisor/driver.ts",
    find: "(warm ?? template).secret",
    replace: "template.secret",
    project: "host",
    test: "tests/host/hostile-disk.test.ts",
    named: "assigned with the secret",
    heavy: true,
  },
  {
    what: "a store with somebody else's schema is not opened",
    file: "packages/agent/src/store/database.ts",
    find: "if (!same) throw damaged",
    replace: "if (false) throw damaged",
    project: "host",
    test: "tests/host/hostile-disk.test.ts",
    named: "trigger",
    heavy: true,
  },
  {
    what: "what needs space is refused while the pool is full",
    file: "packages/host/src/pool/reserve.ts",
    find: "if (bavail * bsize >= RESERVE_BYTES) continue;",
    replace: "if (bavail * bsize >= 0) continue;",
    project: "host",
    test: "tests/host/host-faults.test.ts",
    named: "full pool",
    heavy: true,
  },
];
