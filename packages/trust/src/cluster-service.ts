/** cloche.host.v1.ClusterService, on the cluster port of every gateway: certificates for new parts and for members. */
import { ClocheError } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import type { ClusterService } from "@cloche/protocol/host-registry";
import { ConnectError, type ServiceImpl } from "@connectrpc/connect";
import { type Authority, certificateMs, keyOfRequest } from "./authority.ts";
import { type Identity, uriOf } from "./identity.ts";
import type { JoinTokens, UseOnce } from "./join-token.ts";
import { callerOf } from "./rpc-server.ts";

/** Which key has each id of a cluster: the key that joined under the id, while its certificate is valid. */
export interface Members {
  /** Whether no other key has the id at `nowMs`. `key`: SHA-256, hex. */
  mayHave(identity: Identity, key: string, nowMs: number): Promise<boolean>;
  /** Gives the id to the key until `untilMs`. False: another key has it. Of two calls at once only one gets true. */
  take(identity: Identity, key: string, nowMs: number, untilMs: number): Promise<boolean>;
}

export interface ClusterServiceNeeds {
  authority: Authority;
  tokens: JoinTokens;
  useOnce: UseOnce;
  members: Members;
  /**
   * What edges serve clients with, PEM: the certificate with its chain, its key, and the authority that clients trust.
   */
  edgeCertificate(): Promise<{ certificate: string; key: string; authority: string }>;
  /** The id of the cluster, and its storage as the settings have it, without secrets. */
  installation: { id: string; storage: string };
  nowMs(): number;
  /** Called for each part that joined. */
  joined(role: string, id: string): void;
}

export function clusterService(needs: ClusterServiceNeeds): ServiceImpl<typeof ClusterService> {
  const { authority, tokens, useOnce, members, nowMs } = needs;
  return {
    join: ({ token, id, certificateRequest }) =>
      answering(async () => {
        // Check the request first: a bad request must not use up the token.
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
        // A part that was forgotten, and whose id another key has now, is no longer in the cluster.
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
