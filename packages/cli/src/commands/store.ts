import { readFile } from "node:fs/promises";
import type { StoreOperation } from "@cloche/sdk";
import { UsageError } from "../exit-codes.ts";
import { present, seconds, wholeNumber } from "../options.ts";
import { printJson, printLines, printText, readAll } from "../terminal.ts";
import { act, type Registry, type Run } from "../register.ts";

function parseJson(text: string, hint: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new UsageError(`${hint}: ${(error as Error).message}`);
  }
}

const readText = async (run: Run, text: string): Promise<string> =>
  text === "-" ? (await readAll(run.terminal.stdin)).toString("utf8") : text;

/** store set, get, rm, ls, batch. */
// oxlint-disable-next-line max-lines-per-function -- a list of commands, a few lines each
export function addStoreCommands(registry: Registry): void {
  const store = registry.program.command("store").description("the JSON key-value store of a sandbox");
  store
    .command("set <sandbox> <key> <value>")
    .description("set a key to a JSON value; - reads it from standard input")
    .option("--string", "the value is text, not JSON")
    .option("--ttl <time>", "expires after 90, 5m, 2h, 7d; default never", seconds)
    .addHelpText(
      "after",
      `\nExamples:\n  cloche store set demo config '{"debug":true}'\n  cloche store set demo note --string 'remember the milk' --ttl 1d`,
    )
    .action(
      act(
        registry,
        async (
          run,
          nameOrId: string,
          key: string,
          text: string,
          options: { string?: boolean; ttl?: number },
        ) => {
          const raw = await readText(run, text);
          const value =
            options.string === true ? raw : parseJson(raw, "the value is not JSON (use --string for text)");
          const { store: values } = await run.sandbox(nameOrId);
          const answer = await values.set(key, value, {
            ...present({ ttl_seconds: options.ttl }),
            signal: run.signal,
          });
          if (run.json) await printJson(run.terminal, answer);
        },
      ),
    );
  store
    .command("get <sandbox> <key>")
    .description("print the value of a key as JSON; with --json also when it expires")
    .option("--string", "print a value that is text without quotes")
    .action(
      act(registry, async (run, nameOrId: string, key: string, options: { string?: boolean }) => {
        const answer = await (await run.sandbox(nameOrId)).store.get(key, { signal: run.signal });
        if (run.json) return printJson(run.terminal, answer);
        const { value } = answer;
        if (options.string === true && typeof value === "string")
          return printText(run.terminal, `${value}\n`);
        return printJson(run.terminal, value);
      }),
    );
  store
    .command("rm <sandbox> <key>")
    .description("delete a key; one that is not there is no error")
    .action(
      act(registry, async (run, nameOrId: string, key: string) => {
        const answer = await (await run.sandbox(nameOrId)).store.delete(key, { signal: run.signal });
        if (run.json) await printJson(run.terminal, answer);
      }),
    );
  store
    .command("ls <sandbox>")
    .description("list the keys, sorted")
    .option("--prefix <text>", "only keys that begin with it", "")
    .option("--limit <number>", "at most so many", wholeNumber)
    .action(
      act(registry, async (run, nameOrId: string, options: { prefix: string; limit?: number }) => {
        const { store: values } = await run.sandbox(nameOrId);
        const keys: string[] = [];
        for await (const key of values.allKeys({ prefix: options.prefix, signal: run.signal })) {
          if (options.limit !== undefined && keys.length >= options.limit) break;
          keys.push(key);
        }
        if (run.json) return printJson(run.terminal, { keys });
        return printLines(run.terminal, ...keys);
      }),
    );
  store
    .command("batch <sandbox> <file>")
    .description("apply operations from a JSON file (- for standard input), all or none")
    .addHelpText(
      "after",
      `\nExample:\n  echo '[{"op":"set","key":"a","value":1},{"op":"delete","key":"b"}]' | cloche store batch demo -`,
    )
    .action(
      act(registry, async (run, nameOrId: string, file: string) => {
        const text = file === "-" ? await readText(run, "-") : await readFile(file, "utf8");
        const parsed = parseJson(text, `${file} is not JSON`);
        const operations = Array.isArray(parsed)
          ? parsed
          : (parsed as { operations?: unknown } | null)?.operations;
        if (!Array.isArray(operations)) throw new UsageError(`${file} must hold an array of operations`);
        const { store: values } = await run.sandbox(nameOrId);
        const answer = await values.batch(operations as StoreOperation[], { signal: run.signal });
        if (run.json) return printJson(run.terminal, answer);
        return printLines(run.terminal, `${answer.applied} applied`);
      }),
    );
}
