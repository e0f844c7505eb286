/**
 * Makes tools: one object schema for input and one for output, an answer that is both structured and JSON text, and errors as text for the
 * model. Each tool is a value in a file of `tools/`; `server.ts` registers all.
 */
import type { Cloche, Sandbox } from "@cloche/sdk";
import type { CallToolResult, McpServer, ServerContext, ToolAnnotations } from "@modelcontextprotocol/server";
import { z } from "zod";
import { errorText } from "./errors.ts";
import { findSandbox } from "./find-sandbox.ts";
import { mcpLimits } from "./limits.ts";
import { Progress } from "./progress.ts";
import { toolInput } from "./tool-input.ts";

/** The context of one call. */
export interface Call {
  cloche: Cloche;
  /** Aborts when the client cancels the call or goes away. */
  signal: AbortSignal;
  /** A sandbox of the team by its id or name; throws `not_found` if there is none. */
  sandbox(nameOrId: string): Promise<Sandbox>;
  /** Begins progress notifications. Dispose it before the tool answers. */
  progress(message: string): Progress;
}

/** The effect of a tool: whether it only reads, adds, or destroys data; `-once`: repeating the call changes nothing more. */
export type Effect = "reads" | "adds" | "adds-once" | "destroys" | "destroys-once";

const annotationsOf: Record<Effect, ToolAnnotations> = {
  reads: { readOnlyHint: true, destructiveHint: false, idempotentHint: true },
  adds: { readOnlyHint: false, destructiveHint: false, idempotentHint: false },
  "adds-once": { readOnlyHint: false, destructiveHint: false, idempotentHint: true },
  destroys: { readOnlyHint: false, destructiveHint: true, idempotentHint: false },
  "destroys-once": { readOnlyHint: false, destructiveHint: true, idempotentHint: true },
};

export interface ToolDefinition<Input extends z.ZodObject, Output extends z.ZodObject> {
  name: string;
  title: string;
  /** For a model: when to use it, units, limits, what comes back. */
  description: string;
  effect: Effect;
  /** Whether it runs programs of the model, which may reach the network. Default false. */
  openWorld?: boolean;
  input: Input;
  output: Output;
  run(input: z.output<Input>, call: Call): Promise<z.input<Output>>;
}

/** A tool that can be registered. */
export type Tool = (server: McpServer, cloche: Cloche) => void;

export function tool<Input extends z.ZodObject, Output extends z.ZodObject>(
  definition: ToolDefinition<Input, Output>,
): Tool {
  const { name, title, description, input, output, run } = definition;
  const annotations = {
    title,
    ...annotationsOf[definition.effect],
    openWorldHint: definition.openWorld ?? false,
  };
  const config = {
    title,
    description,
    inputSchema: toolInput(input),
    outputSchema: output as z.ZodObject,
    annotations,
  };
  return (server, cloche) => {
    server.registerTool(name, config, async (given, context): Promise<CallToolResult> => {
      try {
        const answer = await run(given as z.output<Input>, callOf(cloche, context));
        return { content: [{ type: "text", text: JSON.stringify(answer) }], structuredContent: answer };
      } catch (error) {
        context.mcpReq.signal.throwIfAborted();
        const text = errorText(error);
        if (text === undefined) throw error;
        return { content: [{ type: "text", text }], isError: true };
      }
    });
  };
}

function callOf(cloche: Cloche, context: ServerContext): Call {
  const { signal } = context.mcpReq;
  return {
    cloche,
    signal,
    sandbox: (nameOrId) => findSandbox(cloche, nameOrId, signal),
    progress: (message) => new Progress(context, message),
  };
}

const idOf = (kind: string, prefix: string, from: string) =>
  z
    .string()
    .regex(
      new RegExp(`^${prefix}-[a-z0-9]{20}$`),
      `must be the id of a ${kind}, ${prefix}- and 20 characters, as ${from} answers it`,
    )
    .describe(`Id of a ${kind}, ${prefix}-…, from ${from}.`);

/** Fields that several tools take. */
export const sandboxField = z
  .string()
  .min(1)
  .max(64)
  .describe("Id (sbx-…) or name of a sandbox, from create_sandbox or list_sandboxes.");
export const checkpointField = idOf("checkpoint", "ckpt", "create_checkpoint or list_checkpoints");
export const processField = idOf("process", "proc", "start_process or list_processes");
export const pathField = z
  .string()
  .regex(/^\/[^\0]*$/, "must be an absolute path such as /root/app/main.py")
  .describe("Absolute path in the sandbox, such as /root/app/main.py.");
/** A shell line, or a program and its arguments. Only the first is listed, as schemas for models have no unions. */
export const commandField = z
  .union([z.string().min(1), z.array(z.string()).min(1)])
  .describe('A shell line, run by `bash -c`, such as "cd app && npm test".');
export const dirField = z
  .string()
  .optional()
  .describe("Working directory, absolute. Default: the user's home, /root.");
/** Listed as a list, because a schema for Gemini has no maps; `{"DEBUG": "1"}` is taken too. */
export const envField = z
  .union(
    [
      z
        .array(z.string().regex(/^[^=]+=/, "must be NAME=value"))
        .transform((lines) => Object.fromEntries(lines.map(variableOf))),
      z.record(z.string(), z.string()),
    ],
    'must be a list of NAME=value, such as ["DEBUG=1"]',
  )
  .optional()
  .describe('Environment variables, beside the sandbox\'s own, such as ["DEBUG=1"].');

const variableOf = (line: string): [string, string] => {
  const at = line.indexOf("=");
  return [line.slice(0, at), line.slice(at + 1)];
};
export const userField = z.string().optional().describe("Unix user. Default root.");
export const maxBytesField = z
  .int()
  .min(1)
  .max(mcpLimits.readBytesMax)
  .default(mcpLimits.readBytesDefault)
  .describe(`Most bytes to answer, up to ${mcpLimits.readBytesMax}. Default ${mcpLimits.readBytesDefault}.`);

export const commandOf = (command: string | string[]): string[] =>
  typeof command === "string" ? ["bash", "-c", command] : command;

/** `fields` without undefined ones, as requests of the SDK need them. */
export function present<Fields extends object>(
  fields: Fields,
): { [Name in keyof Fields]: Exclude<Fields[Name], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
