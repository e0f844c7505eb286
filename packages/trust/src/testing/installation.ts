/** An installation for tests: its authority, the credentials of parts, and gateways' ports on the loopback. */
import { silentLog } from "@cloche/base";
import { ClusterService, HostRegistryService } from "@cloche/protocol/host-registry";
import { Authority, type Credentials, requestCertificate } from "../authority.ts";
import { ClusterPort } from "../cluster-port.ts";
import { clusterService } from "../cluster-service.ts";
import { type Identity, uriOf } from "../identity.ts";
import { JoinTokens } from "../join-token.ts";
import { onlyFor, RpcServer } from "../rpc-server.ts";
import { openServerSettings } from "../tls-settings.ts";

export const secret = Buffer.alloc(32, 1);
export const installation = { id: "ins-00000000000000000000", storage: "s3://bucket/one" };
const edgeCertificate = { certificate: "served", key: "secret", authority: "trusted" };

export interface TestGateway {
  address: string;
  port: ClusterPort;
  rpc: RpcServer;
  /** Ids of the hosts whose renewals this gateway answered. */
  renewals: string[];
  close(): Promise<void>;
}

export class TestInstallation {
  readonly authority: Authority;
  readonly tokens: JoinTokens;
  readonly #used = new Set<string>();
  /** By role and id, the key that has the id. */
  readonly members = new Map<string, string>();

  private constructor(authority: Authority) {
    this.authority = authority;
    this.tokens = new JoinTokens(secret, authority.certificate);
  }

  static async open(): Promise<TestInstallation> {
    return new TestInstallation(await Authority.open(async (_name, value) => value, secret, Date.now()));
  }

  async credentials(identity: Identity, atMs = Date.now()): Promise<Credentials> {
    const { key, request } = await requestCertificate();
    const { authority } = this;
    return { ca: authority.certificate, key, cert: await authority.issue(identity, request, atMs) };
  }

  async gateway(id: string, port = 0, log = silentLog): Promise<TestGateway> {
    const renewals: string[] = [];
    const { authority, tokens, members } = this;
    const mayHave = async (identity: Identity, key: string): Promise<boolean> =>
      (members.get(uriOf(identity)) ?? key) === key;
    const service = clusterService({
      authority,
      tokens,
      useOnce: async (token) => this.#used.size !== this.#used.add(token).size,
      members: {
        mayHave,
        async take(identity, key) {
          if (!(await mayHave(identity, key))) return false;
          members.set(uriOf(identity), key);
          return true;
        },
      },
      edgeCertificate: async () => edgeCertificate,
      installation,
      nowMs: () => Date.now(),
      joined: () => undefined,
    });
    const rpc = new RpcServer((router) => {
      router.service(ClusterService, service);
      router.service(
        HostRegistryService,
        {
          async renewHost({ hostId }) {
            renewals.push(hostId);
            return { generation: 1n };
          },
        },
        { interceptors: [onlyFor("host")] },
      );
    }, log);
    const listening = await ClusterPort.listen({
      tls: openServerSettings(await this.credentials({ role: "gateway", id })),
      protocols: { h2: { roles: "anybody", serve: (socket) => rpc.serve(socket) } },
      address: "127.0.0.1",
      port,
      log,
    });
    return {
      address: `127.0.0.1:${listening.port}`,
      port: listening,
      rpc,
      renewals,
      async close() {
        await listening.close();
        await rpc.close();
      },
    };
  }
}
