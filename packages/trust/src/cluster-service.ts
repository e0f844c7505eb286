/** cloche.host.v1.ClusterService: certificates for those who join, and for those who belong. On the port of every gateway. */
import { ClocheError } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import type { ClusterService } from "@cloche/protocol/host-registry";
import { ConnectError, type ServiceImpl } from "@connectrpc/connect";
import { type Authority, certificateMs, keyOfRequest } from "./authority.ts";
import { type Identity, uriOf } from "./identity.ts";
import type { JoinTokens, UseOnce } from "./join-token.ts";
import { callerOf } from "./rpc-server.ts";

/** Whose each id of a cluster is: the key's that joined under it, for as long as its certificate is good. */
export interface Members {
  /** Whether nobody else's key has the id at `nowMs`. `key`: SHA-256, hex. */
  mayHave(identity: Identity, key: string, nowMs: number): Promise<boolean>;
  /** The id is the key's until then. False: it is another's. Of two at once one gets true. */
  take(identity: Identity, key: string, nowMs: number, untilMs: number): Promise<boolean>;
}

export interface ClusterServiceNeeds {
  authority: Authority;
  tokens: JoinTokens;
  useOnce: UseOnce;
  members: Members;
  /** What edges serve clients with, PEM: the certificate with its chain, its key, and what clients trust. */
  edgeCertificate(): Promise<{ certificate: string; key: string; authority: string }>;
  /** The id of the cluster, and its storage as the settings have it, without secrets. */
  installation: { id: string; storage: string };
  nowMs(): number;
  /** Hears of each newcomer. */
  joined(role: string, id: string): void;
}

export function clusterService(needs: ClusterServiceNeeds): ServiceImpl<typeof ClusterService> {
  const { authority, tokens, useOnce, members, nowMs } = needs;
  return {
    join: ({ token, id, certificateRequest }) =>
      answering(async () => {
        // A token is not used up by a request that could not be answered.
        const key = await checked(async () => {
          uriOf({ role: "host", id });
          return await keyOfRequest(certificateRequest);
        });
        const shown = tokens.roleOf(token, nowMs());
        if (!(await members.mayHave({ role: shown, id }, key, nowMs()))) throw taken(shown, id);
        const role = await tokens.redeem(token, nowMs(), useOnce);
        if (!(await members.take({ role, id }, key, nowMs(), nowMs() + certificateMs))) throw taken(role, id);
        const certificate = await authority.issue({ role, id }, certificateRequest, nowMs());
        needs.joined(role, id);
        return { certificate, authority: authority.certificate };
      }),

    renewCertificate: ({ certificateRequest }, context) =>
      answering(async () => {
        const caller = callerOf(context);
        if (caller === undefined) throw stranger();
        const key = await checked(() => keyOfRequest(certificateRequest));
        // One that was forgotten, and whose id another has since, is no part of the cluster any more.
        if (!(await members.take(caller, key, nowMs(), nowMs() + certificateMs))) throw stranger();
        return { certificate: await authority.issue(caller, certificateRequest, nowMs()) };
      }),

    getEdgeCertificate: (_request, context) =>
      answering(async () => {
        if (callerOf(context)?.role !== "edge") throw stranger();
        return await needs.edgeCertificate();
      }),

    getInstallation: (_request, context) =>
      answering(async () => {
        if (callerOf(context) === undefined) throw stranger();
        return needs.installation;
      }),
  };
}

const stranger = (): ClocheError =>
  new ClocheError("permission_denied", "the caller's certificate does not allow this call");

const taken = (role: string, id: string): ClocheError =>
  new ClocheError(
    "already_exists",
    `the id ${id} belongs to another ${role}: choose another CLOCHE_NODE_ID, or, where that one is gone for good, run ` +
      `\`cloche forget ${role}/${id}\` on a gateway first`,
  );

async function checked<T>(check: () => Promise<T>): Promise<T> {
  try {
    return await check();
  } catch (cause) {
    throw new ClocheError("invalid_argument", (cause as Error).message, { cause });
  }
}

async function answering<T>(body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (thrown) {
    const error = ClocheError.from(thrown);
    throw new ConnectError(error.message, connectCodes[error.code], undefined, undefined, thrown);
  }
}
