/** cloche.host.v1.ClusterService: certificates for those who join, and for those who belong. On the port of every gateway. */
import { ClocheError } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import type { ClusterService } from "@cloche/protocol/host-registry";
import { ConnectError, type ServiceImpl } from "@connectrpc/connect";
import { type Authority, checkRequest } from "./authority.ts";
import { uriOf } from "./identity.ts";
import type { JoinTokens, UseOnce } from "./join-token.ts";
import { callerOf } from "./rpc-server.ts";

export interface ClusterServiceNeeds {
  authority: Authority;
  tokens: JoinTokens;
  useOnce: UseOnce;
  /** What edges serve clients with, PEM: the certificate with its chain, its key, and what clients trust. */
  edgeCertificate(): Promise<{ certificate: string; key: string; authority: string }>;
  nowMs(): number;
  /** Hears of each newcomer. */
  joined(role: string, id: string): void;
}

export function clusterService(needs: ClusterServiceNeeds): ServiceImpl<typeof ClusterService> {
  const { authority, tokens, useOnce, nowMs } = needs;
  return {
    join: ({ token, id, certificateRequest }) =>
      answering(async () => {
        // A token is not used up by a request that could not be answered.
        await checked(async () => {
          uriOf({ role: "host", id });
          await checkRequest(certificateRequest);
        });
        const role = await tokens.redeem(token, nowMs(), useOnce);
        const certificate = await authority.issue({ role, id }, certificateRequest, nowMs());
        needs.joined(role, id);
        return { certificate, authority: authority.certificate };
      }),

    renewCertificate: ({ certificateRequest }, context) =>
      answering(async () => {
        const caller = callerOf(context);
        if (caller === undefined) throw stranger();
        await checked(() => checkRequest(certificateRequest));
        return { certificate: await authority.issue(caller, certificateRequest, nowMs()) };
      }),

    getEdgeCertificate: (_request, context) =>
      answering(async () => {
        if (callerOf(context)?.role !== "edge") throw stranger();
        return await needs.edgeCertificate();
      }),
  };
}

const stranger = (): ClocheError =>
  new ClocheError("permission_denied", "the caller's certificate does not allow this call");

async function checked(check: () => Promise<unknown>): Promise<void> {
  try {
    await check();
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
