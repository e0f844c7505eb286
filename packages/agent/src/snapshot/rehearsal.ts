/**
 * What a sandbox's first request would otherwise be the first to run, run before anybody waits for it: memory that was
 * restored is read from its image when it is first touched, and a function is compiled when it is first called.
 */
import { innerTokenHeader } from "@cloche/protocol";
import { TokenVerifier } from "../auth/token-verifier.ts";
import type { ChannelKeys } from "../auth/channel-keys.ts";
import { collectCommand, readCommand } from "../exec/routes.ts";
import { ProcessTable } from "../processes/index.ts";
import type { Guest } from "../spawner/index.ts";

/** No id is made. */
const randomBytes = (): never => {
  throw new Error("nobody asks for the id of a rehearsed command");
};
const command = { cmd: ["echo", "ready"] };
/** Once for what is read from the image, again for what the first run left out. */
const rounds = 2;

/** Runs a command, writes and removes a file below /tmp, and checks a token that no key has made. */
export async function rehearse(guest: Guest, keys: ChannelKeys): Promise<void> {
  for (let round = 0; round < rounds; round += 1) await rehearseAgain(guest, keys);
  const path = "/tmp/.cloche-rehearsal";
  await guest.files.write(path, Buffer.from("x"), 0o600);
  await guest.files.remove(path, false);
}

/** What was rehearsed before it was saved, once more: for what is read from the image. */
export async function rehearseAgain(guest: Guest, keys: ChannelKeys): Promise<void> {
  refuseToken(keys);
  const processes = new ProcessTable({ randomBytes, nowMs: Date.now, onActivity: () => undefined });
  const parts = { guest: () => guest, processes };
  await collectCommand(parts, readCommand(command, {}), new AbortController().signal);
}

/**
 * Before a template is saved: what it holds is read into every machine that is made of it. The most thorough collection that
 * there is; what was compiled stays (--no-flush-bytecode). Does nothing without --expose-gc.
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
    // It is not of this machine, as it should be.
  }
}
