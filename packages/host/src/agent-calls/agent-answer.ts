// Whether a machine's agent answers. Each try is a connection of its own: a packet lost while the guest is not yet there
// would otherwise be sent again only after a second.
import { request } from "node:http";
import { connect } from "node:tls";
import { channelKeyOf, connectToAgent, isForeignAgent } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";

const FIRST_TRY_MS = 250;
const LONGEST_TRY_MS = 5_000;
const PAUSE_MS = 4;

/** Whether an agent takes part in a handshake, which fails without its key: that needs its event loop. */
export function agentAnswers(host: string, port: number, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, rejectUnauthorized: false });
    const over = (answered: boolean): void => {
      clearTimeout(deadline);
      resolve(answered);
      socket.destroy();
    };
    // Of the whole: one of the socket begins anew with every byte that an agent lets trickle.
    const deadline = setTimeout(() => over(false), timeoutMs);
    socket.on("secureConnect", () => over(false));
    // One of a release before the channel answers HTTP to it, which is as good.
    socket.on("error", (error) => over(isForeignAgent(error)));
    socket.on("close", () => over(false));
  });
}

/** A request through the channel, whose answer does not matter. */
export function askAgent(host: string, port: number, secret: string, timeoutMs: number): Promise<void> {
  return new Promise((resolve) => {
    const attempt = request(
      {
        createConnection: () => connectToAgent({ host, port, key: channelKeyOf(secret) }),
        path: "/",
        headers: { connection: "close" },
      },
      (response) => response.resume(),
    );
    const deadline = setTimeout(() => attempt.destroy(), timeoutMs);
    attempt.on("error", () => undefined);
    attempt.on("close", () => {
      clearTimeout(deadline);
      resolve();
    });
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
