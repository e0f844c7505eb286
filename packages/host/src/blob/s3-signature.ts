/**
 * Signature version 4 of a request to S3, with its payload unsigned, as s3mini signs. s3mini knows no session tokens and keeps its
 * credentials for good, so it sends unsigned requests through `signedFetch`, which signs each with the credentials of the moment.
 */
import { createHash, createHmac } from "node:crypto";
import type { S3Credentials } from "./s3-credentials.ts";

const unsigned = "UNSIGNED-PAYLOAD";
const algorithm = "AWS4-HMAC-SHA256";

/** A fetch that signs. `nowMs`: for tests. */
export function signedFetch(
  region: string,
  credentials: () => S3Credentials,
  nowMs: () => number = Date.now,
): typeof fetch {
  return (input, init = {}) => {
    const url = new URL(input instanceof Request ? input.url : input);
    const headers = new Headers(init.headers);
    headers.delete("host"); // fetch sets it, from the same URL
    for (const [name, value] of signature(url, init.method ?? "GET", region, credentials(), nowMs()))
      headers.set(name, value);
    return fetch(url, { ...init, headers });
  };
}

/** The headers to add. */
function signature(
  url: URL,
  method: string,
  region: string,
  { accessKeyId, secretAccessKey, sessionToken }: S3Credentials,
  nowMs: number,
): [string, string][] {
  const time = new Date(nowMs).toISOString().replaceAll(/[-:]|\.\d+/g, "");
  const date = time.slice(0, 8);
  const scope = `${date}/${region}/s3/aws4_request`;
  const added: [string, string][] = [
    ["x-amz-content-sha256", unsigned],
    ["x-amz-date", time],
    ...(sessionToken === undefined ? [] : [["x-amz-security-token", sessionToken] as [string, string]]),
  ];
  const signed: [string, string][] = [["host", url.host], ...added]; // in the order of their names
  const names = signed.map(([name]) => name).join(";");
  const canonical = [
    method,
    url.pathname,
    url.search.slice(1).split("&").toSorted().join("&"),
    ...signed.map(([name, value]) => `${name}:${value}`),
    "",
    names,
    unsigned,
  ].join("\n");
  const toSign = [algorithm, time, scope, createHash("sha256").update(canonical).digest("hex")].join("\n");
  const key = [date, region, "s3", "aws4_request"].reduce<string | Buffer>(hmac, `AWS4${secretAccessKey}`);
  const proof = hmac(key, toSign).toString("hex");
  const credential = `Credential=${accessKeyId}/${scope}, SignedHeaders=${names}, Signature=${proof}`;
  return [...added, ["authorization", `${algorithm} ${credential}`]];
}

const hmac = (key: string | Buffer, text: string): Buffer => createHmac("sha256", key).update(text).digest();
