import { z } from "zod";
import { ToolError } from "../errors.ts";
import { mcpLimits } from "../limits.ts";
import { pathField, sandboxField, tool } from "../tool.ts";

export const searchFiles = tool({
  name: "search_files",
  title: "Search in files",
  description:
    "Finds lines that match an extended regular expression (grep -E) in the text files below a path; hidden files too, " +
    `binary ones not. Lines longer than ${mcpLimits.searchLineBytes} characters are cut. \`truncated\`: there are more ` +
    "matches, or the search took longer than a minute; search a smaller path or a narrower pattern.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    pattern: z.string().min(1).max(10_000).describe("Extended regular expression, case-sensitive."),
    path: pathField.default("/root").describe("A directory or file. Default /root."),
    glob: z.string().min(1).optional().describe('Only files whose name fits, such as "*.py".'),
    ignore_case: z.boolean().default(false).describe("Default false."),
    max_matches: z
      .int()
      .min(1)
      .max(mcpLimits.searchMatchesMax)
      .default(mcpLimits.searchMatchesDefault)
      .describe(`Up to ${mcpLimits.searchMatchesMax}. Default ${mcpLimits.searchMatchesDefault}.`),
  }),
  output: z.object({
    matches: z.array(z.object({ path: z.string(), line: z.int().describe("From 1."), text: z.string() })),
    truncated: z.boolean(),
  }),
  async run({ sandbox: id, pattern, path, glob, ignore_case, max_matches }, call) {
    const flags = [
      "-rnHIEZ",
      ...(ignore_case ? ["-i"] : []),
      ...(glob === undefined ? [] : [`--include=${glob}`]),
    ];
    const cmd = ["grep", ...flags, "-e", pattern, "--", path];
    const sandbox = await call.sandbox(id);
    const enough = new AbortController();
    const signal = AbortSignal.any([call.signal, enough.signal]);
    const matches: Match[] = [];
    let rest = "";
    let errors = "";
    try {
      const timeout_ms = mcpLimits.searchSeconds * 1_000;
      for await (const event of sandbox.execStream(cmd, { timeout_ms, env: { LC_ALL: "C.UTF-8" }, signal })) {
        if (event.type === "exit") {
          if (event.exit_code > 1 && !event.timed_out && matches.length === 0)
            throw new ToolError(grepError(errors));
          return { matches, truncated: event.timed_out };
        }
        if (event.type === "stderr") {
          errors = (errors + event.data).slice(0, 1_000);
          continue;
        }
        const lines = (rest + event.data).split("\n");
        rest = (lines.pop() ?? "").slice(0, restCharacters);
        matches.push(...lines.flatMap(matchOf));
        if (matches.length > max_matches) return { matches: matches.slice(0, max_matches), truncated: true };
      }
      return { matches, truncated: true };
    } finally {
      // Enough matches: end the search.
      enough.abort();
    }
  },
});

type Match = { path: string; line: number; text: string };

/** Longest part of an unfinished line that is kept; of a longer line only the beginning is answered. */
const restCharacters = 65_536;

/** `path NUL line : text` */
function matchOf(line: string): Match[] {
  const nul = line.indexOf("\0");
  const colon = line.indexOf(":", nul);
  if (nul < 0 || colon < 0) return [];
  const text = line.slice(colon + 1);
  const cut =
    text.length > mcpLimits.searchLineBytes ? `${text.slice(0, mcpLimits.searchLineBytes)} […]` : text;
  return [{ path: line.slice(0, nul), line: Number(line.slice(nul + 1, colon)), text: cut }];
}

const grepError = (text: string): string => `the search failed: ${text.trim() || "grep gave no reason"}`;
