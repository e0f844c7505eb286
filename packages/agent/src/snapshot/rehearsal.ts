/**
 * Runs the code of a first request before a client waits for it. Restored memory is read from its image at the first access, and a
 * function is compiled at its first call, so a first request would be slow.
 */
import { innerTokenHeader } from "@cloche/protocol";
import { TokenVerifier } from "../auth/token-verifier.ts";
import type { ChannelKeys } from "../auth/channel-keys.ts";
import { collectCommand, readCommand } from "../exec/routes.ts";
import { ProcessTable } from "../processes/index.ts";
import type { Guest } from "../spawner/index.ts";

/** The rehearsal makes no ids. */
const randomBytes = (): never => {
  throw new Error("nobody asks for the id of a rehearsed command");
};
const command = { cmd: ["echo", "ready"] };
/** The first round reads memory from the image, the second covers code that the first did not reach. */
const rounds = 2;

/** Runs a command, writes and removes a file below /tmp, and checks a token without a valid key. */
export async function rehearse(guest: Guest, keys: ChannelKeys): Promise<void> {
  for (let round = 0; round < rounds; round += 1) await rehearseAgain(guest, keys);
  const path = "/tmp/.cloche-rehearsal";
  await guest.files.write(path, Buffer.from("x"), 0o600);
  await guest.files.remove(path, false);
}

/** Repeats the rehearsal after a restore, so that its memory is read from the image. */
export async function rehearseAgain(guest: Guest, keys: ChannelKeys): Promise<void> {
  refuseToken(keys);
  const processes = new ProcessTable({ randomBytes, nowMs: Date.now, onActivity: () => undefined });
  const parts = { guest: () => guest, processes };
  await collectCommand(parts, readCommand(command, {}), new AbortController().signal);
}

/**
 * Collects garbage before a template is saved, because every machine made of the template reads its memory. The most thorough collection;
 * compiled code stays (--no-flush-bytecode). Does nothing without --expose-gc.
 */
export function dropGarbage(): void {
  globalThis.gc?.({ type: "major", execution: "sync", flavor: "last-resort" });
}

function refuseToken(keys: ChannelKeys): void {
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  const mac = Buffer.alloc(32).toString("base64url");
  try {
    new TokenVerifier("", "", keys).check(`${part(innerTokenHeader)}.${part({})}.${mac}`, 0);
  } catch {
    // The token is refused, as it should be.
  }
}
