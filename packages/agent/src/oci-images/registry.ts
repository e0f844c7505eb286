/**
 * A client of the OCI distribution protocol for one repository of one registry: manifests and blobs, with token authentication as at
 * Docker Hub, basic authentication, and redirects to storage. Runs in the pull process, under the sandbox's network rules.
 */
import type { IncomingMessage } from "node:http";
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import type { LookupFunction } from "node:net";
import { rootCertificates } from "node:tls";
import { GatheredBytes } from "@cloche/protocol";
import { ImageError } from "./image-error.ts";
import { imageLimits } from "./image-limits.ts";
import { type Descriptor, manifestTypes } from "./manifest.ts";
import { isLoopback } from "./reference.ts";
import type { ImageSource } from "./source.ts";

export interface RegistryAccess {
  registry: string;
  repository: string;
  /** Tag or digest. */
  target: string;
  username: string | undefined;
  password: string | undefined;
  /** PEM of a CA to trust besides the public ones. */
  ca: string | undefined;
  /** Resolves names; absent: the system's resolver. */
  lookup?: LookupFunction;
}

export class RegistrySource implements ImageSource {
  readonly #access: RegistryAccess;
  #base: string;
  #authorization: string | undefined;

  constructor(access: RegistryAccess) {
    this.#access = access;
    this.#base = `https://${access.registry}`;
  }

  async root(): Promise<Buffer> {
    return this.#fetchManifest(this.#access.target);
  }

  async manifest({ digest }: Descriptor): Promise<Buffer> {
    return this.#fetchManifest(digest);
  }

  async *blob({ digest }: Descriptor): AsyncIterable<Buffer> {
    const path = `/v2/${this.#access.repository}/blobs/${digest}`;
    const response = await this.#get(path, "application/octet-stream");
    if (response.statusCode !== 200) throw await this.#refused(response, `the blob ${digest}`);
    yield* response as AsyncIterable<Buffer>;
  }

  async #fetchManifest(target: string): Promise<Buffer> {
    const path = `/v2/${this.#access.repository}/manifests/${target}`;
    const response = await this.#get(path, manifestTypes.join(", "));
    if (response.statusCode !== 200) throw await this.#refused(response, `the manifest ${target}`);
    return readAll(response, imageLimits.manifestBytes, "manifest");
  }

  /** Sends a request with the authorisation that the registry demands, and follows redirects. */
  async #get(path: string, accept: string): Promise<IncomingMessage> {
    let response = await this.#ask(path, accept);
    if (response.statusCode === 401) {
      const challenge = response.headers["www-authenticate"] ?? "";
      response.resume();
      this.#authorization = await this.#authorize(challenge);
      response = await this.#ask(path, accept);
    }
    return response;
  }

  async #ask(path: string, accept: string): Promise<IncomingMessage> {
    const headers: Record<string, string> = { accept };
    if (this.#authorization !== undefined) headers["authorization"] = this.#authorization;
    try {
      return await this.#follow(`${this.#base}${path}`, headers);
    } catch (error) {
      // A registry on the loopback usually speaks plain HTTP. Elsewhere plain HTTP is not allowed.
      if (!this.#base.startsWith("https:") || !isLoopback(this.#access.registry) || !isTlsFailure(error))
        throw error;
      this.#base = `http://${this.#access.registry}`;
      return this.#follow(`${this.#base}${path}`, headers);
    }
  }

  async #follow(url: string, headers: Record<string, string>): Promise<IncomingMessage> {
    let at = new URL(url);
    let sent = headers;
    for (let hop = 0; hop <= imageLimits.redirects; hop += 1) {
      const response = await this.#send(at, sent);
      const { location } = response.headers;
      if (![301, 302, 303, 307, 308].includes(response.statusCode ?? 0) || location === undefined)
        return response;
      response.resume();
      const next = new URL(location, at);
      if (next.protocol !== "https:" && !isLoopback(next.host)) {
        throw new ImageError(`the registry ${this.#access.registry} redirects to ${next.host} without TLS`);
      }
      // Credentials go only to the registry.
      if (next.origin !== at.origin) sent = { accept: headers["accept"] ?? "*/*" };
      at = next;
    }
    throw new ImageError(`the registry ${this.#access.registry} redirects too often`);
  }

  #send(url: URL, headers: Record<string, string>): Promise<IncomingMessage> {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const { ca, lookup } = this.#access;
    const options = {
      headers: { "user-agent": "cloche", ...headers },
      timeout: imageLimits.stallTimeoutMs,
      ...(lookup === undefined ? {} : { lookup }),
    };
    const request =
      url.protocol === "https:"
        ? httpsRequest(url, { ...options, ...(ca === undefined ? {} : { ca: [...rootCertificates, ca] }) })
        : httpRequest(url, options);
    const connecting = setTimeout(
      () => request.destroy(new Error("connecting timed out")),
      imageLimits.connectTimeoutMs,
    );
    request.on("socket", (socket) => socket.once("connect", () => clearTimeout(connecting)));
    request.on("timeout", () => request.destroy(new Error("it stopped answering")));
    request.on("response", resolve);
    request.on("error", (error) => {
      clearTimeout(connecting);
      reject(new ConnectionError(url.host, error));
    });
    request.end();
    return promise;
  }

  /** Answers the Authorization header for a challenge: basic credentials, or a token requested with or without credentials. */
  async #authorize(challenge: string): Promise<string> {
    const { registry, username, password } = this.#access;
    const basic =
      username === undefined && password === undefined
        ? undefined
        : `Basic ${Buffer.from(`${username ?? ""}:${password ?? ""}`).toString("base64")}`;
    if (/^basic\b/i.test(challenge)) {
      if (basic === undefined) {
        throw new ImageError(`the registry ${registry} wants registry_username and registry_password`);
      }
      return basic;
    }
    const { realm, service, scope } = parseChallenge(challenge);
    if (!/^bearer\b/i.test(challenge) || realm === undefined) {
      throw new ImageError(
        `the registry ${registry} refused, and asks for an authorisation that is not known here`,
      );
    }
    const url = new URL(realm);
    if (url.protocol !== "https:" && !isLoopback(url.host)) {
      throw new ImageError(`the registry ${registry} hands out tokens at ${url.host} without TLS`);
    }
    if (service !== undefined) url.searchParams.set("service", service);
    url.searchParams.set("scope", scope ?? `repository:${this.#access.repository}:pull`);
    const response = await this.#follow(url.href, {
      accept: "application/json",
      ...(basic === undefined ? {} : { authorization: basic }),
    });
    if (response.statusCode !== 200) throw await this.#refused(response, "a token");
    const body = await readAll(response, imageLimits.tokenAnswerBytes, "token");
    return `Bearer ${readToken(body)}`;
  }

  /** The meaning of a status other than 200, for the service's record. */
  async #refused(response: IncomingMessage, what: string): Promise<ImageError> {
    const { registry, repository, username } = this.#access;
    response.resume();
    const status = response.statusCode ?? 0;
    if (status === 404)
      return new ImageError(`${registry} has no ${what.replace(/^the /, "")} in ${repository}`);
    if (status === 401 || status === 403) {
      const hint =
        username === undefined ? "; it may not exist, or want registry_username and registry_password" : "";
      return new ImageError(`${registry} refuses ${what} of ${repository}${hint}`);
    }
    if (status === 429)
      return new PassingError(`${registry} limits how often images may be pulled; try later`);
    if (status >= 500) return new PassingError(`${registry} answers ${status} for ${what} of ${repository}`);
    return new ImageError(`${registry} answers ${status} for ${what} of ${repository}`);
  }
}

/** A temporary failure: the next attempt may succeed. */
export class PassingError extends ImageError {}

class ConnectionError extends PassingError {
  constructor(host: string, cause: NodeJS.ErrnoException) {
    super(`the registry ${host} cannot be reached: ${describeFailure(cause)}`, cause);
  }
}

function describeFailure(error: NodeJS.ErrnoException): string {
  const messages: Record<string, string> = {
    ENOTFOUND: "its name does not resolve",
    EAI_AGAIN: "its name does not resolve now",
    ECONNREFUSED: "it refuses connections",
    ECONNRESET: "it broke the connection",
    ETIMEDOUT: "it does not answer",
    EHOSTUNREACH: "there is no way to it",
    ENETUNREACH: "there is no way to it",
    CERT_HAS_EXPIRED: "its certificate has expired",
    DEPTH_ZERO_SELF_SIGNED_CERT: "its certificate is not trusted; give registry_ca",
    SELF_SIGNED_CERT_IN_CHAIN: "its certificate is not trusted; give registry_ca",
    UNABLE_TO_VERIFY_LEAF_SIGNATURE: "its certificate is not trusted; give registry_ca",
    UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "its certificate is not trusted; give registry_ca",
    ERR_TLS_CERT_ALTNAME_INVALID: "its certificate is of another host",
  };
  const inner =
    error instanceof AggregateError ? (error.errors[0] as NodeJS.ErrnoException | undefined) : undefined;
  return messages[error.code ?? inner?.code ?? ""] ?? error.message;
}

function isTlsFailure(error: unknown): boolean {
  const cause = error instanceof Error ? (error.cause as NodeJS.ErrnoException | undefined) : undefined;
  const code = cause?.code ?? "";
  return code.startsWith("ERR_SSL") || code === "EPROTO" || code === "ECONNRESET";
}

/** The parameters of a Bearer challenge: `Bearer realm="…",service="…",scope="…"`. */
export function parseChallenge(challenge: string): { realm?: string; service?: string; scope?: string } {
  const parameters: Record<string, string> = {};
  for (const [, name = "", quoted, plain] of challenge.matchAll(/([a-z_]+)=(?:"([^"]*)"|([^\s,"]+))/gi)) {
    parameters[name.toLowerCase()] = quoted ?? plain ?? "";
  }
  return parameters;
}

function readToken(body: Buffer): string {
  try {
    const { token, access_token: accessToken } = JSON.parse(body.toString("utf8")) as Record<string, unknown>;
    const found = token ?? accessToken;
    if (typeof found === "string" && /^[\x21-\x7e]+$/.test(found)) return found;
  } catch {
    // Answered below.
  }
  throw new ImageError("the registry's token answer is malformed");
}

async function readAll(response: AsyncIterable<Buffer>, maxBytes: number, what: string): Promise<Buffer> {
  const gathered = new GatheredBytes();
  for await (const chunk of response) {
    gathered.push(chunk);
    if (gathered.length > maxBytes)
      throw new ImageError(`the image's ${what} is larger than ${maxBytes} bytes`);
  }
  const { buffer, byteOffset, length } = gathered.take();
  return Buffer.from(buffer, byteOffset, length);
}
