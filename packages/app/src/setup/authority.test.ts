import { createPrivateKey, X509Certificate } from "node:crypto";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ensureAuthority } from "./authority.ts";
import { addSigningKey, ensureSigningKeys, readSigningKeys } from "./signing-keys.ts";

let home = "";
beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "cloche-authority-"));
});
afterEach(() => rm(home, { recursive: true, force: true }));
const now = Date.UTC(2026, 0, 1);
const year = 365 * 86_400_000;

describe("certificate authority", () => {
  it("signs a wildcard certificate that its authority verifies, and keeps both", async () => {
    const first = await ensureAuthority(home, "cloche.localhost", now);
    const leaf = new X509Certificate(first.cert);
    const authority = new X509Certificate(await readFile(first.caFile));
    expect(leaf.verify(authority.publicKey)).toBe(true);
    expect(leaf.checkHost("sbx-1.cloche.localhost")).toBe("*.cloche.localhost");
    expect(leaf.checkHost("a.b.cloche.localhost")).toBeUndefined();
    expect(leaf.checkPrivateKey(createPrivateKey(first.key))).toBe(true);
    expect((await stat(join(home, "tls/edge-key.pem"))).mode & 0o777).toBe(0o600);
    expect(await ensureAuthority(home, "cloche.localhost", now)).toEqual(first);
  });

  it("makes a new certificate for another domain and before the old one ends, under the same authority", async () => {
    const first = await ensureAuthority(home, "cloche.localhost", now);
    const authority = await readFile(first.caFile, "utf8");
    const moved = await ensureAuthority(home, "sandboxes.example", now);
    expect(new X509Certificate(moved.cert).checkHost("x.sandboxes.example")).toBe("*.sandboxes.example");
    const later = await ensureAuthority(home, "sandboxes.example", now + 1.05 * year);
    expect(later.cert).not.toBe(moved.cert);
    expect(await readFile(later.caFile, "utf8")).toBe(authority);
  });
});

describe("signing keys", () => {
  it("are made once, 2048 bits of RSA, newest first", async () => {
    const [first] = await ensureSigningKeys(home, now);
    expect(await ensureSigningKeys(home, now)).toEqual([first]);
    expect(createPrivateKey(first?.privateKeyPem ?? "").asymmetricKeyDetails?.modulusLength).toBe(2048);
    const second = await addSigningKey(home, now + 1000);
    expect((await readSigningKeys(home)).map((key) => key.kid)).toEqual([second.kid, first?.kid]);
  });
});
