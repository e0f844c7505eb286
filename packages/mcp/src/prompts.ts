import type { Cloche } from "@cloche/sdk";
import { completable, type McpServer } from "@modelcontextprotocol/server";
import { z } from "zod";
import { sandboxIds } from "./sandbox-ids.ts";

/** Prompts with which a person can begin a conversation. */
export function addPrompts(server: McpServer, cloche: Cloche): void {
  const sandbox = completable(z.string().describe("Id of the sandbox in which it fails."), (begun) =>
    sandboxIds(cloche, begun ?? ""),
  );
  server.registerPrompt(
    "try_fixes",
    {
      title: "Try several fixes side by side",
      description: "Forks a sandbox, tries another fix in each fork, and keeps the one that works.",
      argsSchema: z.object({
        sandbox,
        check: z.string().describe("Command that fails now and must pass, such as `npm test`."),
        fixes: z
          .string()
          .regex(/^([2-9]|1[0-6])$/, "must be 2 to 16")
          .optional()
          .describe("How many to try. Default 3."),
      }),
    },
    ({ sandbox: id, check, fixes = "3" }) => ({
      messages: [{ role: "user", content: { type: "text", text: tryFixes(id, check, fixes) } }],
    }),
  );
}

const tryFixes = (id: string, check: string, fixes: string): string =>
  `In the sandbox ${id} this command fails and must pass: ${check}

1. Run it with exec and read the code it is about. Say what may be wrong, and ${fixes} different fixes.
2. Fork the sandbox with fork_sandbox and count ${fixes}.
3. Make one fix in each fork with edit_file and run the command there.
4. Compare: which forks pass, and which change is the smallest and clearest?
5. Make the best fix in ${id} itself, run the command once more, and delete all forks.`;
