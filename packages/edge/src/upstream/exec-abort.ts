import type { Clock, Log } from "@cloche/base";
import { abortExecPath, internalHeaders } from "@cloche/protocol";
import type { AgentPool } from "./agent-pool.ts";

/** Waits before each attempt: the abort may reach the agent before its exec (404), or fail as any request can. */
const waitsMs = [0, 100, 500, 2_000];

/** Requests whose command ends when their client goes away (spec/contract.md, Data plane: exec). */
export function isExecPath(method: string | undefined, path: string): boolean {
  return method === "POST" && (path === "/v1/exec" || /^\/v1\/services\/[^/]+\/exec$/.test(path));
}

/** Tells the agent that an exec's client went away, with the token of the exec. Gives up when the pool is closed. */
export async function abortExec(
  pool: AgentPool,
  exec: { sandboxId: string; execId: string; authorization: string; requestId: string },
  { clock, log, timeoutMs }: { clock: Clock; log: Log; timeoutMs: number },
): Promise<void> {
  const fields = { request_id: exec.requestId, sandbox_id: exec.sandboxId };
  for (const waitMs of waitsMs) {
    if (waitMs > 0) await clock.sleep(waitMs);
    const answer = await post(pool, exec, timeoutMs);
    if (answer === "closed") return;
    if (typeof answer === "number" && answer < 300) return log.info(fields, "client went away; exec aborted");
    if (typeof answer === "number" && answer !== 404 && answer < 500) {
      return log.warn({ ...fields, status: answer }, "agent refused to abort an exec");
    }
  }
  log.info(fields, "client went away; its exec was over or could not be aborted");
}

function post(
  pool: AgentPool,
  exec: { sandboxId: string; execId: string; authorization: string; requestId: string },
  timeoutMs: number,
): Promise<number | "failed" | "closed"> {
  return new Promise((resolve) => {
    pool.acquire(true, (connection, failure) => {
      if (connection === undefined) return resolve(failure?.kind === "closed" ? "closed" : "failed");
      let status: number | "failed" = "failed";
      const over = (how: number | "failed" | "closed"): void => {
        clearTimeout(deadline);
        resolve(how);
      };
      const deadline = setTimeout(() => {
        connection.abandon();
        over("failed");
      }, timeoutMs);
      connection.start(
        {
          onContinue() {},
          onHead: (head) => (status = head.status),
          onBody() {},
          onDone: () => over(status),
          onUpgrade: (_head, socket) => {
            socket.destroy();
            over("failed");
          },
          onDrain() {},
          onFailure: (lost) => over(lost.kind === "closed" ? "closed" : "failed"),
        },
        false,
      );
      connection.write(
        `POST ${abortExecPath} HTTP/1.1\r\nHost: ${exec.sandboxId}\r\nAuthorization: ${exec.authorization}\r\n` +
          `${internalHeaders.execId}: ${exec.execId}\r\n${internalHeaders.requestId}: ${exec.requestId}\r\n` +
          "Content-Length: 0\r\n\r\n",
      );
      connection.requestSent();
    });
  });
}
