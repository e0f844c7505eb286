/** A gateway on a fake host, an in-memory database and a fake clock, with one team and its key. */
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { type Clock, type Log, type Metrics, silentLog } from "@cloche/base";
import { type Database, openSqlite } from "../database/database.ts";
import { createGateway, type Gateway, type GatewayConfig } from "../gateway.ts";
import type { Listener } from "../http/listener.ts";
import type { SigningKey } from "../tokens/signing-keys.ts";
import { FakeClock } from "./fake-clock.ts";
import { FakeHost } from "./fake-host.ts";

let madeKey: SigningKey | undefined;

/** One RSA key for all tests of a process: making one takes long. */
export function testSigningKey(): SigningKey {
  madeKey ??= newSigningKey("test-key");
  return madeKey;
}

export function newSigningKey(kid: string): SigningKey {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2_048 });
  return { kid, privateKeyPem: privateKey.export({ type: "pkcs8", format: "pem" }) as string };
}

export const testConfig: GatewayConfig = {
  issuer: "cloche-test",
  baseDomain: "cloche.localhost",
  edgePort: 7443,
  dataPlaneUrl: "http://127.0.0.1:7081",
  tokenLifetimeSeconds: 3_600,
  corsOrigins: "*",
};

export interface Answer {
  status: number;
  headers: Headers;
  // oxlint-disable-next-line typescript/no-explicit-any
  body: any;
}

export interface GatewayFixture {
  gateway: Gateway;
  host: FakeHost;
  database: Database;
  clock: FakeClock;
  teamId: string;
  secret: string;
  listener: Listener;
  /** Calls a method of SandboxService (or the named service) as curl would. */
  call(method: string, body?: unknown, options?: CallOptions): Promise<Answer>;
  /** Stops the gateway and starts a new one on the same database and host. */
  restart(): Promise<void>;
  close(): Promise<void>;
}

export interface CallOptions {
  secret?: string;
  headers?: Record<string, string>;
  service?: string;
  signal?: AbortSignal;
}

export async function openFixture(
  options: { database?: Database; config?: Partial<GatewayConfig>; metrics?: Metrics; log?: Log } = {},
): Promise<GatewayFixture> {
  const clock = new FakeClock(Date.now());
  const database = options.database ?? (await openSqlite(":memory:", clock));
  const host = new FakeHost();
  const start = async (): Promise<{ gateway: Gateway; listener: Listener }> => {
    const gateway = createGateway({
      database,
      host: host.client,
      signingKeys: [testSigningKey()],
      config: { ...testConfig, ...options.config },
      clock: clock as Clock,
      log: options.log ?? silentLog,
      randomBytes,
      ...(options.metrics && { metrics: options.metrics }),
    });
    await gateway.start();
    const listener = await gateway.listen("127.0.0.1", 0);
    return { gateway, listener };
  };
  let running = await start();
  const team = await running.gateway.addTeam("testers");
  const { secret } = await running.gateway.createApiKey(team.id, "test");
  return {
    get gateway() {
      return running.gateway;
    },
    get listener() {
      return running.listener;
    },
    host,
    database,
    clock,
    teamId: team.id,
    secret,
    call: (method, body = {}, call = {}) =>
      postCall(running.listener.port, method, body, { secret, ...call }),
    async restart() {
      await running.gateway.close();
      running = await start();
    },
    async close() {
      await running.gateway.close();
      await database.close();
    },
  };
}

export async function postCall(
  port: number,
  method: string,
  body: unknown,
  call: CallOptions,
): Promise<Answer> {
  const service = call.service ?? "cloche.public.v1.SandboxService";
  const response = await fetch(`http://127.0.0.1:${port}/${service}/${method}`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      ...(call.secret !== "" && { authorization: `Bearer ${call.secret}` }),
      ...call.headers,
    },
    body: typeof body === "string" ? body : JSON.stringify(body),
    ...(call.signal && { signal: call.signal }),
  });
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    body: text === "" ? undefined : JSON.parse(text),
  };
}
