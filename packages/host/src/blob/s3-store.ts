/**
 * Blobs in an S3 bucket (any compatible server). An object appears complete or not at all; nothing else is needed, no conditional
 * writes and no locks. A pack (checkpoint/archive.ts) is one PUT; checkpoint/catalogue.ts tries a failed upload again. Address:
 * `s3://<bucket>/<prefix>?endpoint=https://…&region=…`; credentials: s3-credentials.ts.
 */
import { S3mini } from "s3mini";
import { ClocheError } from "@cloche/protocol";
import { type BlobEntry, type BlobStore, checkKey } from "./blob-store.ts";
import { readPage } from "./s3-page.ts";
import { bounded } from "./bounded-fetch.ts";
import { type S3Credentials, s3Credentials } from "./s3-credentials.ts";
import { signedFetch } from "./s3-signature.ts";

export interface S3Address {
  endpoint: string;
  bucket: string;
  prefix: string;
  region: string;
  credentials: () => S3Credentials;
}

const requestDeadlineMs = 120_000;
const pageSize = 1_000;
/** Of a list: far more than the objects of any installation, for a store whose list never ends. */
const pagesMax = 20_000;
/** A page with the longest keys. */
const pageBytesMax = 4 * 1024 * 1024;

/** Reads `s3://…`; throws an Error that names what is missing. */
export function parseS3Address(url: string, env: NodeJS.ProcessEnv): S3Address {
  const parsed = new URL(url);
  const credentials = s3Credentials(env);
  if (parsed.hostname === "")
    throw new Error("blob_url names no bucket; it must be s3://<bucket>/<prefix>?endpoint=…");
  const region = parsed.searchParams.get("region") ?? "us-east-1";
  return {
    endpoint: parsed.searchParams.get("endpoint") ?? `https://s3.${region}.amazonaws.com`,
    bucket: parsed.hostname,
    prefix: parsed.pathname.replace(/^\/+|\/+$/g, ""),
    region,
    credentials,
  };
}

export function openS3Store(address: S3Address): BlobStore {
  return new S3Store(address);
}

class S3Store implements BlobStore {
  readonly #client: S3mini;
  readonly #prefix: string;
  readonly #bucketUrl: string;
  readonly #listing: typeof fetch;

  constructor(address: S3Address) {
    const signed = signedFetch(address.region, address.credentials);
    this.#bucketUrl = `${address.endpoint.replace(/\/+$/, "")}/${address.bucket}`;
    this.#listing = bounded(signed, pageBytesMax);
    this.#prefix = address.prefix === "" ? "" : `${address.prefix}/`;
    this.#client = new S3mini({
      endpoint: this.#bucketUrl,
      region: address.region,
      accessKeyId: "",
      secretAccessKey: "",
      fetch: bounded(signed),
      requestAbortTimeout: requestDeadlineMs,
    });
  }

  async put(key: string, data: Uint8Array): Promise<void> {
    const name = this.#key(key);
    const response = await reported(() =>
      this.#client.putObject(name, Buffer.from(data.buffer, data.byteOffset, data.byteLength)),
    );
    if (!response.ok) throw refused(response.status);
  }

  async get(key: string, range?: { offset: number; length: number }): Promise<Uint8Array | undefined> {
    if (range !== undefined && range.length === 0) return new Uint8Array();
    const name = this.#key(key);
    const response = await orAbsent(() =>
      range === undefined
        ? this.#client.getObjectResponse(name)
        : this.#client
            .getObjectRaw(name, false, range.offset, range.offset + range.length)
            .catch(emptyPastTheEnd),
    );
    if (response === undefined || response === null || response.status === 404) return undefined;
    if (!response.ok) throw refused(response.status);
    return new Uint8Array(await reported(() => response.arrayBuffer()));
  }

  async delete(key: string): Promise<void> {
    const name = this.#key(key);
    await orAbsent(() => this.#client.deleteObject(name));
  }

  async list(prefix: string): Promise<BlobEntry[]> {
    const entries: BlobEntry[] = [];
    let token: string | undefined;
    for (let pages = 0; pages < pagesMax; pages += 1) {
      const page = readPage(await reported(() => this.#page(prefix, token)));
      for (const { key, ...entry } of page.objects)
        if (key.startsWith(`${this.#prefix}${prefix}`))
          entries.push({ key: key.slice(this.#prefix.length), ...entry });
      if (page.next === undefined) return entries.sort((a, b) => (a.key < b.key ? -1 : 1));
      if (page.next === token) break;
      token = page.next;
    }
    throw new ClocheError("internal", "the list of checkpoint storage does not end");
  }

  async #page(prefix: string, token: string | undefined): Promise<string> {
    const query = Object.entries({
      "list-type": "2",
      "max-keys": String(pageSize),
      prefix: `${this.#prefix}${prefix}`,
      ...(token !== undefined && { "continuation-token": token }),
    }).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
    const signal = AbortSignal.timeout(requestDeadlineMs);
    const response = await this.#listing(`${this.#bucketUrl}?${query.join("&")}`, { signal });
    if (!response.ok) throw refused(response.status);
    return response.text();
  }

  #key(key: string): string {
    checkKey(key);
    return `${this.#prefix}${key}`;
  }
}

const refused = (status: number): ClocheError =>
  status === 507
    ? new ClocheError("resource_exhausted", "checkpoint storage is full", { resource: "disk" })
    : new ClocheError("unavailable", `checkpoint storage answered ${status}`);

async function reported<T>(body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw new ClocheError("unavailable", "checkpoint storage cannot be reached", { cause: error });
  }
}

/** A range that begins past the end of a blob reads nothing. */
function emptyPastTheEnd(error: { status?: number }): Response {
  if (error.status === 416) return new Response(new Uint8Array());
  throw error;
}

/** A 404 is an answer, not a failure. */
function orAbsent<T>(body: () => Promise<T>): Promise<T | undefined> {
  return reported(() =>
    body().catch((error: { status?: number }) => {
      if (error.status === 404) return undefined;
      throw error;
    }),
  );
}
