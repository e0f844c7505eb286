/** Names of a cluster's storage, from a gateway: HostStorageService of registry.proto. */
import { ClocheError, type ErrorCode, listPositionText, parseListPosition } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import type { HostStorageService, NamedCheckpoint as NamedMessage } from "@cloche/protocol/host-registry";
import { type Client, Code, ConnectError } from "@connectrpc/connect";
import type { CheckpointNames, NamedCheckpoint, SweepCalls } from "./checkpoint-names.ts";
import type { CheckpointHeader } from "./manifest.ts";

/** `client`: reaches any gateway; it tries the next one by itself if one does not answer. */
export function gatewayNames(client: Client<typeof HostStorageService>): CheckpointNames & SweepCalls {
  return {
    async hold({ name, inherited, own = [] }) {
      await asked(client.holdObject({ name, inherited: [...inherited], own: [...own] }));
    },
    async release(name) {
      await asked(client.releaseObject({ name }));
    },
    async name({ header, packs }) {
      const { id, team_id: teamId, sandbox_id: sandboxId } = header;
      const checkpoint = { id, teamId, sandboxId, headerJson: JSON.stringify(header), packs };
      await asked(client.nameCheckpoint({ checkpoint }));
    },
    async find(teamId, id) {
      try {
        return namedOf(await asked(client.findCheckpoint({ teamId, id })));
      } catch (error) {
        if (ClocheError.from(error).code === "not_found") return undefined;
        throw error;
      }
    },
    async list(teamId, sandboxId, { limit, after }) {
      const pageToken = after === undefined ? "" : listPositionText(after);
      const page = await asked(client.listCheckpoints({ teamId, sandboxId, limit, pageToken }));
      const next = page.nextPageToken;
      return {
        checkpoints: page.checkpoints.map(namedOf),
        next: next === "" ? undefined : parseListPosition("next_page_token", next),
      };
    },
    async totals(teamId) {
      const { count, bytes } = await asked(client.countCheckpoints({ teamId }));
      return { count: Number(count), bytes };
    },
    async drop(teamId, id) {
      return (await asked(client.dropCheckpoint({ teamId, id }))).freedBytes;
    },
    async claim() {
      const { isClaimed, garbage, listDue } = await asked(client.claimSweep({}));
      return isClaimed ? { garbage, isListDue: listDue } : undefined;
    },
    async unnamed(keys) {
      return (await asked(client.findUnnamed({ keys: [...keys] }))).keys;
    },
    async swept(keys, isListed) {
      await asked(client.reportSwept({ keys: [...keys], listed: isListed }));
    },
  };
}

/** The header is trusted: only hosts write it into the database. */
const namedOf = ({ headerJson, packs }: NamedMessage): NamedCheckpoint => ({
  header: JSON.parse(headerJson) as CheckpointHeader,
  packs: packs.map(({ id, bytes }) => ({ id, bytes })),
});

/** Maps the errors of a call, and a gateway that does not answer, to ClocheError. */
async function asked<Answer>(call: Promise<Answer>): Promise<Answer> {
  try {
    return await call;
  } catch (thrown) {
    const { code, rawMessage } = ConnectError.from(thrown, Code.Unavailable);
    const isAnswer = thrown instanceof ConnectError;
    const message = isAnswer ? rawMessage : "no gateway can be asked what lies in storage";
    throw new ClocheError(codeNames.get(code) ?? "internal", message, { cause: thrown });
  }
}

const codeNames = new Map(Object.entries(connectCodes).map(([name, code]) => [code, name as ErrorCode]));
