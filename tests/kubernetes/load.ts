// Requests without end on one sandbox, by a process of its own (client.ts), while something happens to the cluster.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

export interface LoadReport {
  asked: number;
  failed: number;
  longestMs: number;
  errors: string[];
}

export interface Load {
  /** After the request under way. */
  end(): Promise<LoadReport>;
}

/** Answers with the first request. */
export async function startLoad(argv: readonly string[], env: Record<string, string>): Promise<Load> {
  const [program = "", ...words] = argv;
  const child = spawn(program, words, {
    env: { ...process.env, ...env },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async (): Promise<string> => {
    const { value, done } = await lines.next();
    if (done) throw new Error("the client of the load ended by itself");
    return value;
  };
  await next();
  return {
    end: async () => {
      child.stdin.end();
      return JSON.parse(await next()) as LoadReport;
    },
  };
}
