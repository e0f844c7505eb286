/** `GET` and `POST /files`: content in and out, streamed, of any size. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { posix } from "node:path";
import { Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import type { EntryInfo } from "@cloche/protocol";
import type { SandboxDataPlane } from "@cloche/sdk";
import { E2bError, notOffered } from "../e2b-error.ts";
import { answerJson, headerOf, signalOf, written } from "../http.ts";
import type { Account } from "./accounts.ts";
import { makeDirectories } from "./make-directories.ts";
import { attributesHeader, type Metadata, metadataIn, metadataOf } from "./metadata.ts";
import { uploads } from "./multipart.ts";
import { userPath } from "./user-path.ts";

const passedOn = ["content-length", "last-modified", "etag", "content-range", "accept-ranges"];
const asked = ["range", "if-range"];

export interface FileCall {
  plane: SandboxDataPlane;
  account: Account;
  query: URLSearchParams;
  request: IncomingMessage;
  response: ServerResponse;
}

export async function readFile({ plane, account, query, request, response }: FileCall): Promise<void> {
  const path = userPath("path", query.get("path"), account);
  const headers = picked(asked, (name) => headerOf(request, name));
  const answer = await plane.dataPlane.request(request.method ?? "GET", "/v1/files", {
    query: { path },
    headers,
    signal: signalOf(response),
  });
  response.writeHead(answer.status, {
    "content-type": "application/octet-stream",
    "content-disposition": `inline; filename*=UTF-8''${encodeURIComponent(posix.basename(path))}`,
    ...picked(passedOn, (name) => answer.headers.get(name) ?? undefined),
  });
  for await (const piece of (answer.body ?? []) as AsyncIterable<Uint8Array>) await written(response, piece);
  response.end();
}

/** Multipart, where each part's file name is a path, or one octet stream; gzipped or not. Answers what was written. */
export async function writeFiles(call: FileCall): Promise<void> {
  const { request, query, response } = call;
  const path = query.get("path") ?? "";
  const type = headerOf(request, "content-type") ?? "";
  const metadata = metadataOf(request);
  const signal = signalOf(response);
  const body = plainBody(request);
  const written: EntryInfo[] = [];
  if (type.startsWith("multipart/form-data")) {
    const isAlone = path !== "";
    for await (const { name, content } of uploads(body, type)) {
      if (isAlone && written.length > 0)
        throw new E2bError("invalid_argument", `you cannot upload multiple files to the same path '${path}'`);
      written.push(await writeFile(call, signal, isAlone ? path : name, content, metadata));
    }
    if (written.length === 0) throw new E2bError("invalid_argument", "the body has no part named file");
  } else if (path === "") {
    throw new E2bError("invalid_argument", "path is missing; it names the file to write");
  } else written.push(await writeFile(call, signal, path, body, metadata));
  answerJson(
    response,
    200,
    written.map((info) => ({ name: info.name, path: info.path, type: "file", metadata: metadataIn(info) })),
  );
}

async function writeFile(
  { plane, account }: FileCall,
  signal: AbortSignal,
  name: string,
  content: Readable,
  metadata: Metadata,
): Promise<EntryInfo> {
  const path = userPath("path", name, account);
  await makeDirectories(plane, posix.dirname(path), account);
  // A stream that failed before it is read would be taken for an empty file.
  requireSound(content);
  const sent = plane.dataPlane.json<EntryInfo>("PUT", "/v1/files", {
    query: { path },
    headers: {
      "content-type": "application/octet-stream",
      "x-file-owner": account.uid,
      "x-file-group": account.gid,
      ...attributesHeader(metadata),
    },
    body: Readable.toWeb(content) as ReadableStream<Uint8Array<ArrayBuffer>>,
    signal,
    repeatable: false,
  });
  const info = await sent.catch((error: unknown) => {
    requireSound(content);
    throw error;
  });
  if (Object.keys(metadata).length > 0 && info.attributes === undefined)
    throw notOffered("metadata in a sandbox that an earlier release has started");
  return info;
}

function requireSound({ errored }: Readable): void {
  if (errored instanceof E2bError) throw errored;
  if (errored !== null)
    throw new E2bError("invalid_argument", `the body is cut off or damaged: ${errored.message}`, {
      cause: errored,
    });
}

function plainBody(request: IncomingMessage): Readable {
  const encoding = headerOf(request, "content-encoding") ?? "identity";
  if (encoding === "identity") return request;
  if (encoding !== "gzip")
    throw new E2bError("invalid_argument", `content-encoding is ${encoding}; it must be gzip or left out`);
  const unpacked = createGunzip();
  // It may fail before anybody reads it, and an error without a listener ends the process.
  unpacked.on("error", () => undefined);
  request.once("error", (error) => unpacked.destroy(error));
  return request.pipe(unpacked);
}

function picked(
  names: readonly string[],
  valueOf: (name: string) => string | undefined,
): Record<string, string> {
  const found = names.map((name) => [name, valueOf(name)] as const);
  return Object.fromEntries(found.filter((pair): pair is [string, string] => pair[1] !== undefined));
}
