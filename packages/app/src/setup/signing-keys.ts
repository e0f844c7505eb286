/**
 * RSA keys that sign data plane tokens, in `<home>/keys/signing/<kid>.pem`. The newest signs; older ones verify until they
 * are removed (key-rotation.ts). The kid begins with the time of its creation, so names sort by age.
 */
import { generateKeyPair, randomBytes } from "node:crypto";
import { mkdir, readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { writeDurably } from "@cloche/base";

export interface SigningKeyFile {
  kid: string;
  privateKeyPem: string;
}

const generate = promisify(generateKeyPair);
export const signingKeyFolder = (home: string): string => join(home, "keys", "signing");

/** Newest first; at least one. */
export async function ensureSigningKeys(home: string, nowMs: number): Promise<SigningKeyFile[]> {
  const keys = await readSigningKeys(home);
  return keys.length > 0 ? keys : [await addSigningKey(home, nowMs)];
}

/** Makes the next signing key. Older keys still verify. */
export async function addSigningKey(home: string, nowMs: number): Promise<SigningKeyFile> {
  await mkdir(signingKeyFolder(home), { recursive: true, mode: 0o700 });
  const { kid, privateKeyPem } = await newSigningKey(nowMs);
  await writeDurably(join(signingKeyFolder(home), `${kid}.pem`), privateKeyPem, 0o600);
  return { kid, privateKeyPem };
}

/** Makes a key without storing it. */
export async function newSigningKey(nowMs: number): Promise<SigningKeyFile> {
  const { privateKey } = await generate("rsa", { modulusLength: 2_048 });
  const kid = `${Math.floor(nowMs / 1000).toString(36)}-${randomBytes(6).toString("hex")}`;
  const privateKeyPem = privateKey.export({ type: "pkcs8", format: "pem" }) as string;
  return { kid, privateKeyPem };
}

export async function readSigningKeys(home: string): Promise<SigningKeyFile[]> {
  const names = await readdir(signingKeyFolder(home)).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
  const kids = names.filter((name) => name.endsWith(".pem")).map((name) => name.slice(0, -4));
  kids.sort((a, b) => (a < b ? 1 : -1));
  return Promise.all(
    kids.map(async (kid) => ({
      kid,
      privateKeyPem: await readFile(join(signingKeyFolder(home), `${kid}.pem`), "utf8"),
    })),
  );
}
