import { createHash, createHmac, hkdfSync } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { type IncomingHttpHeaders, request } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { channel, innerTokenHeader } from "@cloche/protocol";
import { channelKeyOf } from "../auth/channel-keys.ts";
import type { Spawner } from "../spawner/index.ts";
import { type Agent, createAgent } from "../agent.ts";
import { localSpawner } from "./local-spawner.ts";

export const sandboxId = "sbx-aaaaaaaaaaaaaaaaaaaa";
export const issuer = "https://gateway.test";
export const bootstrapSecret = "bootstrap-secret";
export const controlSecret = "control-secret";

const channelKey = channelKeyOf(controlSecret);

/** An inner token; `claims` and `header` override those of a valid token, `key` is the channel key. */
export function token(
  claims: Record<string, unknown> = {},
  header: Record<string, unknown> = {},
  key: Uint8Array = channelKey,
): string {
  const nowSeconds = Math.floor(Date.now() / 1000);
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const signed = `${part({ ...innerTokenHeader, ...header })}.${part({
    iss: issuer,
    sub: "team-a",
    aud: sandboxId,
    sandbox_id: sandboxId,
    iat: nowSeconds,
    nbf: nowSeconds,
    exp: nowSeconds + 3_600,
    jti: "one",
    ...claims,
  })}`;
  const macKey = Buffer.from(hkdfSync("sha256", key, "", channel.labels.tokenKey, channel.keyBytes));
  return `${signed}.${createHmac("sha256", macKey).update(signed).digest("base64url")}`;
}

export interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
  /** The parsed body; `{}` where it is no JSON object. */
  json: Record<string, unknown>;
}

export interface CallOptions {
  body?: unknown;
  raw?: string | Buffer;
  headers?: Record<string, string>;
  authorization?: string;
}

export interface AgentFixture {
  agent: Agent;
  port: number;
  diskPath: string;
  spawner: Spawner;
  /** A data plane call with a good token (`authorization: ""` sends none). */
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
  control(method: string, body?: unknown, secret?: string): Promise<Answer>;
  assign(changes?: Record<string, unknown>, secret?: string): Promise<Answer>;
  close(): Promise<void>;
}

/** An agent on a free port of loopback with an empty disk of its own; not assigned yet. */
export async function startAgent(
  options: { diskPath?: string; spawner?: Spawner; program?: readonly string[]; channel?: true } = {},
): Promise<AgentFixture> {
  const diskPath = options.diskPath ?? mkdtempSync(join(tmpdir(), "cloche-agent-"));
  const spawner = options.spawner ?? localSpawner();
  const quiet = { info: () => undefined, warn: () => undefined, error: () => undefined };
  const agent = createAgent(
    {
      host: "127.0.0.1",
      port: 0,
      diskPath,
      bootstrapControlSecretSha256: createHash("sha256").update(bootstrapSecret).digest("hex"),
      bootstrapChannelKey: channelKeyOf(bootstrapSecret).toString("hex"),
      nativeDir: "/nonexistent",
      memoryGuard: false,
      userNamespace: false,
    },
    spawner,
    quiet,
    options.program ?? [process.execPath, "/nonexistent"],
    options.channel !== true,
  );
  const { promise, resolve } = Promise.withResolvers<void>();
  agent.server.listen(0, "127.0.0.1", resolve);
  await promise;
  const { port } = agent.server.address() as AddressInfo;
  const good = token();

  const call: AgentFixture["call"] = (method, path, { body, raw, headers = {}, authorization } = {}) => {
    const sent = raw ?? (body === undefined ? undefined : JSON.stringify(body));
    const auth = authorization ?? `Bearer ${good}`;
    return send(port, method, path, sent, { ...(auth === "" ? {} : { authorization: auth }), ...headers });
  };
  const control: AgentFixture["control"] = (method, body = {}, secret = controlSecret) =>
    send(port, "POST", `/cloche.guest.v1.GuestService/${method}`, JSON.stringify(body), {
      authorization: `Bearer ${secret}`,
      "content-type": "application/json",
    });
  return {
    agent,
    port,
    diskPath,
    spawner,
    call,
    control,
    assign: (changes = {}, secret = bootstrapSecret) =>
      control("Assign", { sandboxId, controlSecret, issuer, ...changes }, secret),
    close: async () => {
      await agent.close();
      if (options.diskPath === undefined) rmSync(diskPath, { recursive: true, force: true });
    },
  };
}

/** One request on a new connection, its path sent exactly as given. */
export function send(
  port: number,
  method: string,
  path: string,
  body: string | Buffer | undefined,
  headers: Record<string, string>,
): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const sent = request({ host: "127.0.0.1", port, method, path, headers, agent: false }, (response) => {
    const chunks: Buffer[] = [];
    response.on("data", (chunk: Buffer) => chunks.push(chunk));
    response.on("error", reject);
    response.on("end", () => {
      const text = Buffer.concat(chunks).toString("utf8");
      let json: Record<string, unknown> = {};
      try {
        json = JSON.parse(text) as Record<string, unknown>;
      } catch {
        // Not JSON: `text` has it.
      }
      resolve({ status: response.statusCode ?? 0, headers: response.headers, text, json });
    });
  });
  sent.on("error", reject);
  sent.end(body);
  return promise;
}
