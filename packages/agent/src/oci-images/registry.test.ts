import { createServer, type IncomingMessage, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { parseChallenge, RegistrySource } from "./registry.ts";

let server: Server | undefined;
afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

/** A registry on loopback; answers its host and port. */
async function serve(answer: RequestListener): Promise<string> {
  server = createServer(answer);
  await new Promise<void>((resolve) => server?.listen(0, "127.0.0.1", resolve));
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}
const source = (
  registry: string,
  credentials: { username?: string; password?: string } = {},
): RegistrySource =>
  new RegistrySource({
    registry,
    repository: "team/app",
    target: "v1",
    username: credentials.username,
    password: credentials.password,
    ca: undefined,
  });
const descriptor = { mediaType: "", digest: `sha256:${"a".repeat(64)}`, sizeBytes: 4 };
async function blobText(from: RegistrySource): Promise<string> {
  let text = "";
  for await (const chunk of from.blob(descriptor)) text += chunk.toString();
  return text;
}

describe("RegistrySource", () => {
  it("gets a token where it is asked to, and uses it from then on", async () => {
    const seen: string[] = [];
    const registry = await serve(({ url = "", headers }, response) => {
      seen.push(`${url.split("?")[0]} ${headers.authorization ?? "-"}`);
      if (url.startsWith("/token")) {
        const { searchParams } = new URL(url, "http://x");
        expect(searchParams.get("scope")).toBe("repository:team/app:pull");
        expect(searchParams.get("service")).toBe("the service");
        response.end(JSON.stringify({ token: "abc" }));
      } else if (headers.authorization === "Bearer abc")
        response.end(url.includes("blobs") ? "blob" : "manifest");
      else {
        response.writeHead(401, {
          "www-authenticate": `Bearer realm="http://${headers.host}/token",service="the service",scope="repository:team/app:pull"`,
        });
        response.end();
      }
    });
    const from = source(registry, { username: "u", password: "p" });
    expect((await from.root()).toString()).toBe("manifest");
    expect(await blobText(from)).toBe("blob");
    const basic = `Basic ${Buffer.from("u:p").toString("base64")}`;
    expect(seen).toEqual([
      "/v2/team/app/manifests/v1 -",
      `/token ${basic}`,
      "/v2/team/app/manifests/v1 Bearer abc",
      `/v2/team/app/blobs/${descriptor.digest} Bearer abc`,
    ]);
  });

  it("uses basic credentials where a registry wants them, and says when there are none", async () => {
    const registry = await serve(({ headers }, response) => {
      if (headers.authorization === `Basic ${Buffer.from("u:p").toString("base64")}`)
        response.end("manifest");
      else {
        response.writeHead(401, { "www-authenticate": 'Basic realm="x"' });
        response.end();
      }
    });
    expect((await source(registry, { username: "u", password: "p" }).root()).toString()).toBe("manifest");
    await expect(source(registry).root()).rejects.toThrow(/registry_username/);
    await expect(source(registry, { username: "u", password: "no" }).root()).rejects.toThrow(/refuses/);
  });

  it("never takes credentials along to another host, nor follows one without TLS", async () => {
    let stored: IncomingMessage["headers"] = {};
    const storage = createServer(({ headers }, response) => {
      stored = headers;
      response.end("blob");
    });
    await new Promise<void>((resolve) => storage.listen(0, "127.0.0.1", resolve));
    const { port } = storage.address() as AddressInfo;
    let target = `http://127.0.0.1:${port}/x`;
    const registry = await serve(({ headers }, response) => {
      if (headers.authorization === undefined) response.writeHead(401, { "www-authenticate": "Basic" });
      else response.writeHead(307, { location: target });
      response.end();
    });
    const from = source(registry, { username: "u", password: "p" });
    expect(await blobText(from)).toBe("blob");
    expect(stored.authorization).toBeUndefined();
    target = "http://storage.example/x";
    await expect(blobText(from)).rejects.toThrow(/without TLS/);
    target = `http://${registry}/again`;
    await expect(blobText(from)).rejects.toThrow(/too often/);
    storage.close();
  });

  it.each([
    [404, /has no manifest v1 in team\/app/],
    [403, /refuses/],
    [429, /limits/],
    [500, /500/],
    [418, /418/],
  ])("says what %i means", async (status, message) => {
    const registry = await serve((_request, response) => {
      response.writeHead(status);
      response.end();
    });
    await expect(source(registry).root()).rejects.toThrow(message);
  });

  it("says why a registry cannot be reached", async () => {
    const registry = await serve(() => undefined);
    server?.close();
    await expect(source(registry).root()).rejects.toThrow(/refuses connections/);
  });

  it("refuses a manifest that goes on and on", async () => {
    const registry = await serve((_request, response) => {
      const more = (): void => {
        while (response.write(Buffer.alloc(65_536, 0x20))) continue;
      };
      response.on("drain", more).on("error", () => undefined);
      more();
    });
    await expect(source(registry).root()).rejects.toThrow(/larger than/);
  });

  it("reads challenges", () => {
    expect(parseChallenge('Bearer realm="https://a/b?c=d,e",service=plain, scope="x y"')).toEqual({
      realm: "https://a/b?c=d,e",
      service: "plain",
      scope: "x y",
    });
  });
});
