import "reflect-metadata"; // x509 needs it loaded first
import { createPrivateKey, webcrypto, X509Certificate } from "node:crypto";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as x509 from "@peculiar/x509";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ensureAuthority } from "./authority.ts";
import { homeSigningKeys } from "./signing-keys.ts";

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
    expect(leaf.checkHost("localhost")).toBe("localhost");
    for (const address of ["127.0.0.1", "::1"]) expect(leaf.checkIP(address)).toBe(address);
  });

  it("signs anew a certificate of its own that lacks the loopback's names, and leaves an operator's alone", async () => {
    const first = await ensureAuthority(home, "cloche.localhost", now);
    const authority = await readFile(first.caFile, "utf8");
    const elsewhere = await mkdtemp(join(tmpdir(), "cloche-authority-"));
    try {
      await ensureAuthority(elsewhere, "cloche.localhost", now);
      const [own, strange] = await Promise.all([home, elsewhere].map((folder) => withoutLoopback(folder)));
      await writeFile(join(home, "tls/edge.pem"), own ?? "");
      const again = await ensureAuthority(home, "cloche.localhost", now);
      expect(again.cert).not.toBe(own);
      expect(new X509Certificate(again.cert).checkIP("127.0.0.1")).toBe("127.0.0.1");
      expect(new X509Certificate(again.cert).verify(new X509Certificate(authority).publicKey)).toBe(true);
      expect(await readFile(again.caFile, "utf8")).toBe(authority);
      await writeFile(join(home, "tls/edge.pem"), strange ?? "");
      expect((await ensureAuthority(home, "cloche.localhost", now)).cert).toBe(strange);
    } finally {
      await rm(elsewhere, { recursive: true, force: true });
    }
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

/** A certificate as an earlier release made it: signed by the folder's authority, for the base domain alone. */
async function withoutLoopback(folder: string): Promise<string> {
  const pem = (name: string): Promise<string> => readFile(join(folder, "tls", name), "utf8");
  const algorithm = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };
  const keyOf = async (name: string): Promise<webcrypto.CryptoKey> =>
    await webcrypto.subtle.importKey(
      "pkcs8",
      x509.PemConverter.decodeFirst(await pem(name)),
      algorithm,
      true,
      ["sign"],
    );
  const ca = new x509.X509Certificate(await pem("ca.pem"));
  const leaf = await x509.X509CertificateGenerator.create({
    subject: "CN=*.cloche.localhost",
    issuer: ca.subject,
    notBefore: new Date(now),
    notAfter: new Date(now + year),
    signingAlgorithm: algorithm,
    publicKey: new x509.X509Certificate(await pem("edge.pem")).publicKey,
    signingKey: (await keyOf("ca-key.pem")) as CryptoKey,
    extensions: [
      new x509.SubjectAlternativeNameExtension([
        { type: "dns", value: "*.cloche.localhost" },
        { type: "dns", value: "cloche.localhost" },
      ]),
    ],
  });
  return `${leaf.toString("pem")}\n`;
}

describe("signing keys", () => {
  it("are 2048 bits of RSA, newest first", async () => {
    const keys = homeSigningKeys(home);
    await keys.addFirst(now);
    const [first] = await keys.list();
    expect(createPrivateKey(first?.privateKeyPem ?? "").asymmetricKeyDetails?.modulusLength).toBe(2048);
    const second = await keys.add(now + 1000, 0);
    expect((await keys.list()).map((key) => key.kid)).toEqual([second.kid, first?.kid]);
  });
});
