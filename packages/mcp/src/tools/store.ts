import { z } from "zod";
import { ToolError } from "../errors.ts";
import { mcpLimits } from "../limits.ts";
import { present, sandboxField, tool, type Tool } from "../tool.ts";

const keyField = z.string().min(1).max(512).describe("1 to 512 bytes, not `.` or `..`.");

const storeSet = tool({
  name: "store_set",
  title: "Put a value into the store",
  description:
    "Keeps a JSON value under a key in the sandbox's own store; it replaces what was there. The store lies on the disk: it " +
    "survives suspend, a fork copies it, restore_checkpoint rewinds it. At most 1 MiB a value.",
  effect: "destroys-once",
  input: z.object({
    sandbox: sandboxField,
    key: keyField,
    // Any JSON is taken.
    value: z
      .unknown()
      .optional()
      .meta({ type: "string", description: "A text. For any other value give `value_json`." }),
    value_json: z.string().optional().describe("The value as JSON text, such as [1, 2]; instead of `value`."),
    ttl_seconds: z.int().min(1).optional().describe("Forget it after so many seconds. Default: never."),
  }),
  output: z.object({ expires_at: z.string().nullable() }),
  async run({ sandbox: nameOrId, key, value, value_json, ttl_seconds }, call) {
    const sandbox = await call.sandbox(nameOrId);
    const options = { ...present({ ttl_seconds }), signal: call.signal };
    const { expires_at } = await sandbox.store.set(key, valueOf(value, value_json), options);
    return { expires_at };
  },
});

function valueOf(value: unknown, json: string | undefined): unknown {
  if (json === undefined) {
    if (value === undefined)
      throw new ToolError("value is missing: give a text as value, or any JSON as value_json");
    return value;
  }
  if (value !== undefined && value !== null) throw new ToolError("give value or value_json, not both");
  try {
    return JSON.parse(json);
  } catch {
    throw new ToolError("value_json is no JSON; give a text as value");
  }
}

const storeGet = tool({
  name: "store_get",
  title: "Read a value of the store",
  description: `The value of a key. One larger than ${mcpLimits.storeValueBytes} bytes as JSON is refused.`,
  effect: "reads",
  input: z.object({ sandbox: sandboxField, key: keyField }),
  output: z.object({ value: z.unknown(), expires_at: z.string().nullable() }),
  async run({ sandbox, key }, call) {
    const { value, expires_at } = await (await call.sandbox(sandbox)).store.get(key, { signal: call.signal });
    const size = Buffer.byteLength(JSON.stringify(value));
    if (size > mcpLimits.storeValueBytes)
      throw new ToolError(
        `the value has ${size} bytes as JSON, more than ${mcpLimits.storeValueBytes}; read it with a program`,
      );
    return { value, expires_at };
  },
});

const storeList = tool({
  name: "store_list",
  title: "List the store's keys",
  description: "Keys in the sandbox's store, sorted. `truncated`: there are more; pass `cursor` to go on.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    prefix: z.string().optional().describe("Only keys that begin with it."),
    limit: z
      .int()
      .min(1)
      .max(mcpLimits.storeKeysMax)
      .default(mcpLimits.storeKeysDefault)
      .describe(`Up to ${mcpLimits.storeKeysMax}. Default ${mcpLimits.storeKeysDefault}.`),
    cursor: z.string().optional().describe("Of the answer before."),
  }),
  output: z.object({ keys: z.array(z.string()), truncated: z.boolean(), cursor: z.string() }),
  async run({ sandbox, ...query }, call) {
    const page = await (await call.sandbox(sandbox)).store.keys({ ...present(query), signal: call.signal });
    return { keys: page.keys, truncated: page.truncated, cursor: page.cursor };
  },
});

const storeDelete = tool({
  name: "store_delete",
  title: "Delete a key of the store",
  description: "Removes a key and its value. `deleted` false: there was none.",
  effect: "destroys-once",
  input: z.object({ sandbox: sandboxField, key: keyField }),
  output: z.object({ deleted: z.boolean() }),
  async run({ sandbox, key }, call) {
    const { deleted } = await (await call.sandbox(sandbox)).store.delete(key, { signal: call.signal });
    return { deleted };
  },
});

export const storeTools: readonly Tool[] = [storeSet, storeGet, storeList, storeDelete];
