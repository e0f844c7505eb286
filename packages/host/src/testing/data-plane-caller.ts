/** Calls a host's data plane handler over a loopback port, with tokens of a key made for the test. */
import { createSign, generateKeyPairSync } from "node:crypto";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Host } from "../create-host.ts";

const testIssuer = "https://host.test";
const testKid = "test-key";
const lifetimeSeconds = 600;
const { privateKey, publicKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const jwk = publicKey.export({ format: "jwk" }) as { kty: string; n: string; e: string };

/** For SetVerificationKeys. */
export const testKeys = { issuer: testIssuer, keys: [{ kid: testKid, jwkJson: JSON.stringify(jwk) }] };

export interface Answer {
  status: number;
  headers: Headers;
  // oxlint-disable-next-line typescript/no-explicit-any -- whatever the route answers; tests look into it
  body: any;
}

export function signToken(sandboxId: string, claims: object = {}): string {
  const now = Math.floor(Date.now() / 1000);
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const body = {
    iss: testIssuer,
    sub: "team-t",
    aud: sandboxId,
    sandbox_id: sandboxId,
    iat: now,
    nbf: now,
    exp: now + lifetimeSeconds,
    jti: "j",
    ...claims,
  };
  const text = `${part({ alg: "RS256", kid: testKid, typ: "JWT" })}.${part(body)}`;
  return `${text}.${createSign("RSA-SHA256").update(text).sign(privateKey, "base64url")}`;
}

export class DataPlaneCaller {
  readonly #server: Server;

  constructor(server: Server) {
    this.#server = server;
  }

  static async open(host: () => Host): Promise<DataPlaneCaller> {
    const server = createServer((request, response) => {
      const sandboxId = String(request.headers["x-lab-sandbox"]);
      host().dataPlane(request, response, { sandboxId, requestId: "req-lab" });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return new DataPlaneCaller(server);
  }

  get address(): { host: string; port: number } {
    return { host: "127.0.0.1", port: (this.#server.address() as AddressInfo).port };
  }

  async call(
    sandboxId: string,
    method: string,
    path: string,
    body?: object,
    token = signToken(sandboxId),
  ): Promise<Answer> {
    const { host, port } = this.address;
    const response = await fetch(`http://${host}:${port}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, "x-lab-sandbox": sandboxId, connection: "close" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { status: response.status, headers: response.headers, body: (await response.json()) as unknown };
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}
