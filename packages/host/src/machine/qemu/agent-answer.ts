// Whether a machine's agent answers HTTP. Each try is a connection of its own: a packet lost while the guest is not yet there
// would otherwise be sent again only after a second.
import { request } from "node:http";
import { ClocheError } from "@cloche/protocol";

const FIRST_TRY_MS = 250;
const LONGEST_TRY_MS = 5_000;
const PAUSE_MS = 4;

/** Any answer will do; what it says is the agent's business. */
export function agentAnswers(host: string, port: number, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const over = (answered: boolean): void => {
      clearTimeout(deadline);
      resolve(answered);
      attempt.destroy();
    };
    const attempt = request(
      { host, port, path: "/", method: "GET", agent: false, headers: { connection: "close" } },
      (response) => {
        response.resume();
        over(true);
      },
    );
    // Of the whole: one of the socket begins anew with every byte that an agent lets trickle.
    const deadline = setTimeout(() => over(false), timeoutMs);
    attempt.on("error", () => over(false));
    attempt.on("close", () => over(false));
    attempt.end();
  });
}

/** Resolves when the agent answers. Throws deadline_exceeded, or what `ended` rejects with when the machine ends before. */
export async function untilAgentAnswers(
  host: string,
  port: number,
  timeoutMs: number,
  ended: Promise<never>,
): Promise<void> {
  const over = new AbortController();
  const tries = tryUntil(host, port, timeoutMs, over.signal);
  try {
    await Promise.race([tries, ended]);
  } finally {
    over.abort();
    tries.catch(() => undefined);
  }
}

async function tryUntil(host: string, port: number, timeoutMs: number, over: AbortSignal): Promise<void> {
  const started = performance.now();
  for (;;) {
    const elapsed = performance.now() - started;
    // Tries of a slow guest get longer, or none would ever be long enough.
    const tryMs = Math.min(Math.max(FIRST_TRY_MS, elapsed / 4), LONGEST_TRY_MS);
    if ((await agentAnswers(host, port, tryMs)) || over.aborted) return;
    if (elapsed > timeoutMs)
      throw new ClocheError("deadline_exceeded", `the machine's agent did not answer within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
