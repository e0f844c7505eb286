import type { BlobStore } from "./blob-store.ts";
import { openDirectoryStore } from "./directory-store.ts";
import { openS3Store, parseS3Address } from "./s3-store.ts";

/** The store that CLOCHE_BLOB_URL names: a directory, an S3 bucket, or `<home>/blobs` when it is empty. */
export async function openBlobStore(url: string, home: string, env: NodeJS.ProcessEnv): Promise<BlobStore> {
  if (url.startsWith("s3://")) return openS3Store(parseS3Address(url, env));
  return openDirectoryStore(url || `${home}/blobs`);
}
