/**
 * RSA keys that sign data plane tokens, in files of the home. The kid begins with the time of its creation, so names sort by age.
 *
 *   <home>/keys/signing/<kid>.pem            the newest signs, older ones verify (key-rotation.ts)
 *   <home>/keys/signing/<kid>.retires.json   of an older key: when it is removed
 */
import { generateKeyPair, randomBytes } from "node:crypto";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { readJsonFile, writeDurably } from "@cloche/base";
import type { KeyStore, SigningKeyFile } from "./key-store.ts";

const generate = promisify(generateKeyPair);
export const signingKeyFolder = (home: string): string => join(home, "keys", "signing");

export function homeSigningKeys(home: string): KeyStore {
  const noteOf = (kid: string): string => join(signingKeyFolder(home), `${kid}.retires.json`);
  return {
    async list() {
      const keys = await readSigningKeys(home);
      const withEnd = async (key: SigningKeyFile, index: number) => {
        const note = (await readJsonFile(noteOf(key.kid))) as { at_ms?: number } | undefined;
        return { ...key, signsFromMs: 0, retiresAtMs: index === 0 ? Number.POSITIVE_INFINITY : note?.at_ms };
      };
      return await Promise.all(keys.map(withEnd));
    },
    addFirst: (nowMs) => addSigningKey(home, nowMs),
    async add(nowMs) {
      // Names sort by their second of creation, so the new name must be of a later second.
      const newestMs = Math.max(...(await readSigningKeys(home)).map(({ kid }) => madeAtMs(kid)));
      const { kid } = await addSigningKey(home, Math.max(nowMs, newestMs + 1_000));
      return { kid, signsFromMs: 0 };
    },
    retire: (kid, atMs) => writeDurably(noteOf(kid), `${JSON.stringify({ at_ms: atMs })}\n`, 0o600),
    async remove(kid) {
      await rm(join(signingKeyFolder(home), `${kid}.pem`), { force: true });
      await rm(noteOf(kid), { force: true });
    },
  };
}

/** Makes a signing key. Older keys still verify. */
async function addSigningKey(home: string, nowMs: number): Promise<SigningKeyFile> {
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

const madeAtMs = (kid: string): number => Number.parseInt(kid.split("-")[0] ?? "0", 36) * 1_000;

/** Newest first. */
async function readSigningKeys(home: string): Promise<SigningKeyFile[]> {
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
