import type { EntryInfo, ListResponse, Sandbox } from "@cloche/sdk";
import { z } from "zod";
import { editText } from "../edit-text.ts";
import { ToolError } from "../errors.ts";
import { mcpLimits } from "../limits.ts";
import { readBounded } from "../read-bounded.ts";
import { maxBytesField, pathField, present, sandboxField, tool, type Tool } from "../tool.ts";
import { textOf } from "../utf8.ts";

const entryRecord = z.object({
  path: z.string(),
  is_dir: z.boolean(),
  size_bytes: z.int(),
  modified_at: z.string().describe("RFC 3339."),
  mode: z.string().describe("Four octal digits."),
  symlink_target: z.string().describe("Empty: no symlink."),
});

const recordOf = (entry: EntryInfo): z.infer<typeof entryRecord> => ({
  path: entry.path,
  is_dir: entry.is_dir,
  size_bytes: entry.size,
  modified_at: entry.modified_at,
  mode: entry.permissions,
  symlink_target: entry.symlink_target,
});

const encodingField = z
  .enum(["utf8", "base64"])
  .default("utf8")
  .describe("`utf8` (default) for text, `base64` for any other bytes.");

const readFile = tool({
  name: "read_file",
  title: "Read a file",
  description:
    "Reads a file of any size, `max_bytes` at a time. `next_offset_bytes` is where to go on, null at the end of the file. A " +
    "file that is not UTF-8 text needs `encoding: base64`.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    path: pathField,
    offset_bytes: z.int().min(0).default(0).describe("Where to begin. Default 0."),
    max_bytes: maxBytesField,
    encoding: encodingField,
  }),
  output: z.object({
    content: z.string(),
    size_bytes: z.int().describe("Of the whole file."),
    offset_bytes: z.int().describe("Of the first byte of `content`."),
    next_offset_bytes: z.int().nullable(),
  }),
  async run({ sandbox: id, path, offset_bytes, max_bytes, encoding }, call) {
    const sandbox = await call.sandbox(id);
    const size = await sizeOf(sandbox, path, call.signal);
    if (offset_bytes >= size && size + offset_bytes > 0) {
      if (offset_bytes === size)
        return { content: "", size_bytes: size, offset_bytes, next_offset_bytes: null };
      throw new ToolError(`offset_bytes is ${offset_bytes}; ${path} has ${size} bytes`);
    }
    const range = { start: offset_bytes, end: offset_bytes + max_bytes - 1 };
    const options = { ...(size > 0 && range), signal: call.signal };
    const { bytes, more } = await readBounded(await sandbox.files.readStream(path, options), max_bytes);
    if (more && size === 0)
      throw new ToolError(`${path} has no size and has more than ${max_bytes} bytes; read it with exec`);
    const piece =
      encoding === "utf8"
        ? textOf(bytes)
        : { text: Buffer.from(bytes).toString("base64"), from: 0, to: bytes.length };
    if (piece === undefined)
      throw new ToolError(
        `${path} is not UTF-8 text (${size} bytes); read it with encoding base64, or have exec look at it`,
      );
    const end = offset_bytes + piece.to;
    const next_offset_bytes = end < size && piece.to > 0 ? end : null;
    return {
      content: piece.text,
      size_bytes: size,
      offset_bytes: offset_bytes + piece.from,
      next_offset_bytes,
    };
  },
});

/** Size of the file, with symlinks followed. */
async function sizeOf(sandbox: Sandbox, path: string, signal: AbortSignal): Promise<number> {
  const query = { path, follow: true };
  const entry = await sandbox.dataPlane.json<EntryInfo>("GET", "/v1/files/stat", { query, signal });
  if (entry.is_dir) throw new ToolError(`${path} is a directory; list_files lists it`);
  return entry.size;
}

const writeFile = tool({
  name: "write_file",
  title: "Write a file",
  description:
    "Creates a file or replaces it whole; missing directories are made. A reader sees the old or the new file, never a " +
    "part. At most 1,048,576 bytes. To change some lines of a file use edit_file.",
  effect: "destroys-once",
  input: z.object({
    sandbox: sandboxField,
    path: pathField,
    content: z.string(),
    encoding: encodingField,
    mode: z
      .string()
      .regex(/^0?[0-7]{3}$/, 'must be octal, such as "0755"')
      .optional()
      .describe('Octal, such as "0755". Default: as it was, else 0644.'),
  }),
  output: entryRecord,
  async run({ sandbox: id, path, content, encoding, mode }, call) {
    const body = encoding === "utf8" ? content : bytesOfBase64(content);
    const sandbox = await call.sandbox(id);
    return recordOf(await sandbox.files.write(path, body, { ...present({ mode }), signal: call.signal }));
  },
});

function bytesOfBase64(text: string): Uint8Array<ArrayBuffer> {
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4 !== 0)
    throw new ToolError("content is not base64; with encoding utf8 it is taken as text");
  return new Uint8Array(Buffer.from(text, "base64"));
}

const editFile = tool({
  name: "edit_file",
  title: "Edit a file in place",
  description:
    "Replaces `old_text` by `new_text` in a text file of at most 1,048,576 bytes. `old_text` must be in it exactly once, " +
    "blanks included, so give enough lines around it; or set `replace_all`. A file with CRLF keeps it. Nothing changes " +
    "where `old_text` does not fit.",
  effect: "destroys",
  input: z.object({
    sandbox: sandboxField,
    path: pathField,
    old_text: z.string().min(1),
    new_text: z.string(),
    replace_all: z.boolean().default(false).describe("Replace every place. Default false."),
  }),
  output: z.object({ replacements: z.int(), size_bytes: z.int() }),
  async run({ sandbox: id, path, old_text, new_text, replace_all }, call) {
    const sandbox = await call.sandbox(id);
    const size = await sizeOf(sandbox, path, call.signal);
    if (size > mcpLimits.editBytes)
      throw new ToolError(
        `${path} has ${size} bytes, more than ${mcpLimits.editBytes}; edit it with exec, by sed or python`,
      );
    const piece = textOf(await sandbox.files.read(path, { signal: call.signal }));
    if (piece === undefined || piece.to - piece.from !== size)
      throw new ToolError(`${path} is not UTF-8 text; edit it with exec`);
    const { text, places } = editText(piece.text, old_text, new_text);
    if (places === 0) throw new ToolError(`old_text is not in ${path}; read_file shows what is`);
    if (places > 1 && !replace_all)
      throw new ToolError(
        `old_text is in ${path} ${places} times; give more lines around it, or set replace_all`,
      );
    const written = await sandbox.files.write(path, text, { signal: call.signal });
    return { replacements: places, size_bytes: written.size };
  },
});

const listFiles = tool({
  name: "list_files",
  title: "List a directory",
  description:
    "Entries of a directory, sorted by path. `depth` 2 and more lists what is below too. `truncated`: there are more, or " +
    "there is more below `depth`; list a subdirectory, or use search_files.",
  effect: "reads",
  input: z.object({
    sandbox: sandboxField,
    path: pathField,
    depth: z.int().min(1).max(32).default(1).describe("1 (default) to 32."),
    max_entries: z
      .int()
      .min(1)
      .max(mcpLimits.listEntriesMax)
      .default(mcpLimits.listEntriesDefault)
      .describe(`Up to ${mcpLimits.listEntriesMax}. Default ${mcpLimits.listEntriesDefault}.`),
  }),
  output: z.object({ entries: z.array(entryRecord), truncated: z.boolean() }),
  async run({ sandbox, path, depth, max_entries }, call) {
    const list = await listOf(await call.sandbox(sandbox), path, { depth, signal: call.signal });
    const entries = list.entries.slice(0, max_entries).map(recordOf);
    return { entries, truncated: list.truncated || entries.length < list.entries.length };
  },
});

/** The list of a directory, whose size the programs of the sandbox decide. */
export async function listOf(
  { dataPlane }: Pick<Sandbox, "dataPlane">,
  path: string,
  { depth, signal }: { depth: number; signal: AbortSignal },
): Promise<ListResponse> {
  const { body } = await dataPlane.request("GET", "/v1/files/list", { query: { path, depth }, signal });
  const { bytes, more } = await readBounded(body ?? new Blob([]).stream(), mcpLimits.listBytes);
  if (more)
    throw new ToolError(
      `the list of ${path} is larger than ${mcpLimits.listBytes} bytes; list a subdirectory, or use search_files`,
    );
  return JSON.parse(Buffer.from(bytes).toString()) as ListResponse;
}

const deleteFile = tool({
  name: "delete_file",
  title: "Delete a file or directory",
  description:
    "Removes a file, or a directory with all that is in it where `recursive` is set. It cannot be had back.",
  effect: "destroys-once",
  input: z.object({
    sandbox: sandboxField,
    path: pathField,
    recursive: z
      .boolean()
      .default(false)
      .describe("Needed for a directory that is not empty. Default false."),
  }),
  output: z.object({ deleted: z.literal(true), path: z.string() }),
  async run({ sandbox, path, recursive }, call) {
    await (await call.sandbox(sandbox)).files.delete(path, { recursive, signal: call.signal });
    return { deleted: true as const, path };
  },
});

export const fileTools: readonly Tool[] = [readFile, writeFile, editFile, listFiles, deleteFile];
