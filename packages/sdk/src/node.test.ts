import { once } from "node:events";
import { mkdtemp, mkdir, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TLSSocket } from "node:tls";
import { expect, test } from "vitest";
import { findConnection, nodeFetch } from "./node.ts";
import { selfSigned } from "./testing/certificate.ts";

const baseDomain = "sandboxes.invalid";

async function edge() {
  const tls = await selfSigned(baseDomain);
  const server = https.createServer(tls, (request, response) => {
    const { servername } = request.socket as TLSSocket;
    response.end(JSON.stringify({ host: request.headers.host, servername }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const port = (server.address() as AddressInfo).port;
  return { caCert: tls.cert, port, edgeUrl: `https://127.0.0.1:${port}`, close: () => server.close() };
}

test("a domain that does not resolve is reached at the edge, with its own Host and SNI, by the local CA alone", async () => {
  const { caCert, port, edgeUrl, close } = await edge();
  const url = `https://sbx-a.${baseDomain}:${port}/v1/x`;
  const fetch = nodeFetch({ caCert, edgeUrl, baseDomain });
  const answer = (await (await fetch(url, {})).json()) as object;
  expect(answer).toEqual({ host: `sbx-a.${baseDomain}:${port}`, servername: `sbx-a.${baseDomain}` });
  const stranger = nodeFetch({ edgeUrl, baseDomain });
  await expect(stranger(url, {})).rejects.toThrow("self-signed certificate");
  const wrong = nodeFetch({ caCert, edgeUrl, baseDomain: "invalid" });
  await expect(wrong("https://other.invalid/", {})).rejects.toThrow("altnames");
  await Promise.all([fetch.close(), stranger.close(), wrong.close()]);
  close();
});

test("a call without a body or with text: status, headers, a body read whole or as it comes, an abort", async () => {
  const server = http.createServer((request, response) => {
    if (request.url === "/never") return;
    response.writeHead(request.url === "/refused" ? 403 : 200, {
      "X-Request-Id": "r-1",
      "X-Two": ["a", "b"],
    });
    request.pipe(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const fetch = nodeFetch();
  const answer = await fetch(url, { method: "POST", body: '{"a":1}', headers: { "content-type": "x" } });
  expect(answer).toMatchObject({ ok: true, status: 200, statusText: "OK" });
  expect(["x-request-id", "X-Two", "x-none"].map((name) => answer.headers.get(name))).toEqual([
    "r-1",
    "a, b",
    null,
  ]);
  expect(await answer.json()).toEqual({ a: 1 });
  expect(await fetch(`${url}/refused`, {})).toMatchObject({ ok: false, status: 403 });

  const streamed = await fetch(url, { method: "POST", body: "parts" });
  const read: string[] = [];
  for await (const part of streamed.body as unknown as AsyncIterable<Uint8Array>)
    read.push(Buffer.from(part).toString());
  expect(read.join("")).toBe("parts");

  const reason = new Error("enough");
  const abort = new AbortController();
  setTimeout(() => abort.abort(reason), 10);
  await expect(fetch(`${url}/never`, { signal: abort.signal })).rejects.toBe(reason);
  server.closeAllConnections();
  server.close();
  await fetch.close();
});

test("a connection is found in the environment, else in the local service's status", async () => {
  const home = await mkdtemp(join(tmpdir(), "cloche-sdk-"));
  expect(() => findConnection({ CLOCHE_HOME: home })).toThrow(
    /no Cloche service found.*npm start.*CLOCHE_URL/,
  );
  await mkdir(join(home, "run"));
  await writeFile(join(home, "ca.pem"), "PEM");
  const status = {
    gateway_url: "http://127.0.0.1:1",
    edge_url: "https://127.0.0.1:2",
    base_domain: "b",
    ca_cert: join(home, "ca.pem"),
    api_key: "k",
  };
  await writeFile(join(home, "run", "status.json"), JSON.stringify(status));
  expect(findConnection({ CLOCHE_HOME: home })).toEqual({
    gatewayUrl: "http://127.0.0.1:1",
    apiKey: "k",
    caCert: "PEM",
    edgeUrl: "https://127.0.0.1:2",
    baseDomain: "b",
    useDomains: false,
  });
  for (const name of ["CLOCHE_URL", "CLOCHE_GATEWAY_URL"]) {
    const elsewhere = { CLOCHE_HOME: home, [name]: "https://gateway.example" };
    expect(() => findConnection(elsewhere)).toThrow(/set CLOCHE_API_KEY/);
    const found = findConnection({ ...elsewhere, CLOCHE_API_KEY: "other" });
    expect(found).toMatchObject({ apiKey: "other", caCert: undefined, edgeUrl: undefined });
  }
  const edgeUrl = "https://edge.example";
  expect(findConnection({ CLOCHE_HOME: home, CLOCHE_EDGE_URL: edgeUrl })).toMatchObject({
    edgeUrl,
    useDomains: true,
  });
  expect(() => findConnection({ CLOCHE_HOME: home, CLOCHE_CA_CERT: "/nope" })).toThrow(
    /cannot read the CA certificate/,
  );
  await rm(home, { recursive: true });
});
