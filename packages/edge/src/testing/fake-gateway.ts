import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import {
  KeySetSchema,
  RedeemPortLinkResponseSchema,
  RouteEvent_Kind,
  RouteEventSchema,
  RouteSchema,
  RouteService,
  type Route,
  type RouteEvent,
} from "@cloche/protocol/edge";
import { exportJWK, generateKeyPair, SignJWT } from "jose";
import type { RouteClient } from "../route-table.ts";

export const issuer = "cloche-test";
export const sandboxA = "sbx-aaaaaaaaaaaaaaaaaaaa";
export const sandboxB = "sbx-bbbbbbbbbbbbbbbbbbbb";

/** Fields of a route to change. */
export type RouteFields = Partial<Omit<Route, "$typeName" | "$unknown">>;

/** RouteService in memory: the test sets routes, watchers get events, and tokens are signed with a key of its own. */
export class FakeGateway {
  readonly client: RouteClient;
  /** Ids of sandboxes that should be woken, in order. */
  readonly woken: string[] = [];
  readonly redeemed: string[] = [];
  readonly usedFileLinks = new Set<string>();
  /** What WakeSandbox does; by default the route becomes RUNNING. */
  onWake: (sandboxId: string) => Promise<Route>;
  readonly #routes = new Map<string, Route>();
  readonly #watchers = new Set<(event: RouteEvent | undefined) => void>();
  readonly #privateKey: CryptoKey;
  readonly #jwkJson: string;
  readonly #links = new Map<string, string>();

  static async start(): Promise<FakeGateway> {
    const { privateKey, publicKey } = await generateKeyPair("RS256", { extractable: true });
    return new FakeGateway(privateKey, JSON.stringify(await exportJWK(publicKey)));
  }

  constructor(privateKey: CryptoKey, jwkJson: string) {
    this.#privateKey = privateKey;
    this.#jwkJson = jwkJson;
    this.onWake = async (sandboxId) => {
      const route = this.#routes.get(sandboxId);
      this.set({ sandboxId, state: "SANDBOX_STATE_RUNNING", epoch: (route?.epoch ?? 0n) + 1n });
      return this.#routes.get(sandboxId) as Route;
    };
    const transport = createRouterTransport(({ service }) => {
      service(RouteService, {
        watchRoutes: (_request, context) => this.#watch(context.signal),
        wakeSandbox: async ({ sandboxId }) => {
          this.woken.push(sandboxId);
          return this.onWake(sandboxId);
        },
        useFileLink: async ({ linkId }) => {
          if (this.usedFileLinks.has(linkId)) throw new ConnectError("used", Code.AlreadyExists);
          this.usedFileLinks.add(linkId);
          return {};
        },
        redeemPortLink: async ({ linkToken, sandboxId, port }) => {
          const token = this.#links.get(`${linkToken} ${sandboxId} ${port}`);
          this.#links.delete(`${linkToken} ${sandboxId} ${port}`);
          if (token === undefined) throw new ConnectError("no such link", Code.NotFound);
          this.redeemed.push(linkToken);
          return create(RedeemPortLinkResponseSchema, {
            cookieToken: token,
            expiresAtUnix: Math.floor(Date.now() / 1000) + 3_600,
          });
        },
      });
    });
    this.client = createClient(RouteService, transport);
  }

  set(change: RouteFields & { sandboxId: string }): void {
    const message = create(RouteSchema);
    Object.assign(message, this.#routes.get(change.sandboxId), change);
    this.#routes.set(change.sandboxId, message);
    this.#push(create(RouteEventSchema, { kind: RouteEvent_Kind.SET, route: message }));
  }
  /** A copy. */
  routeOf(sandboxId: string): Route {
    return Object.assign(create(RouteSchema), this.#routes.get(sandboxId));
  }
  remove(sandboxId: string): void {
    this.#routes.delete(sandboxId);
    this.#push(create(RouteEventSchema, { kind: RouteEvent_Kind.REMOVE, route: { sandboxId } }));
  }
  /** Changes the table without an event, as if the gateway had been away. */
  forget(sandboxId: string): void {
    this.#routes.delete(sandboxId);
  }
  /** Ends every stream. */
  breakStreams(): void {
    this.#push(undefined);
  }
  addLink(linkToken: string, sandboxId: string, port: number, cookieToken: string): void {
    this.#links.set(`${linkToken} ${sandboxId} ${port}`, cookieToken);
  }

  /** A token as the gateway would sign it; `claims` and `header` overwrite. */
  token(sandboxId: string, claims: object = {}, header: object = {}): Promise<string> {
    const now = Math.floor(Date.now() / 1000);
    return new SignJWT({
      iss: issuer,
      sub: "team-x",
      aud: sandboxId,
      sandbox_id: sandboxId,
      iat: now,
      nbf: now,
      exp: now + 3_600,
      jti: "j",
      ...claims,
    })
      .setProtectedHeader({ alg: "RS256", kid: "key-1", typ: "JWT", ...header })
      .sign(this.#privateKey);
  }

  /** The same for the token of a port link. */
  portToken(sandboxId: string, port: number, claims: object = {}): Promise<string> {
    return this.token(sandboxId, { aud: `port:${port}:${sandboxId}`, port, ...claims });
  }

  #push(event: RouteEvent | undefined): void {
    for (const watcher of this.#watchers) watcher(event);
  }

  async *#watch(signal: AbortSignal): AsyncGenerator<RouteEvent> {
    const queue: Array<RouteEvent | undefined> = [];
    let wake = (): void => undefined;
    const watcher = (event: RouteEvent | undefined): void => {
      queue.push(event);
      wake();
    };
    this.#watchers.add(watcher);
    signal.addEventListener("abort", () => watcher(undefined));
    try {
      const keys = create(KeySetSchema, { issuer, keys: [{ kid: "key-1", jwkJson: this.#jwkJson }] });
      yield create(RouteEventSchema, { kind: RouteEvent_Kind.KEYS, keys });
      for (const route of this.#routes.values())
        yield create(RouteEventSchema, { kind: RouteEvent_Kind.SET, route });
      yield create(RouteEventSchema, { kind: RouteEvent_Kind.SYNCED });
      for (;;) {
        while (queue.length > 0) {
          const event = queue.shift();
          if (event === undefined) return;
          yield event;
        }
        await new Promise<void>((resolve) => (wake = resolve));
      }
    } finally {
      this.#watchers.delete(watcher);
    }
  }
}
