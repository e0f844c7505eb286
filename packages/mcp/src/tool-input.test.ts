import type { Cloche } from "@cloche/sdk";
import { Client } from "@modelcontextprotocol/client";
import { InMemoryTransport } from "@modelcontextprotocol/server";
import { expect, it } from "vitest";
import { z } from "zod";
import { nearestArgument } from "./nearest-argument.ts";
import { createMcpServer } from "./server.ts";
import { toolInput } from "./tool-input.ts";

const example = z.object({
  sandbox: z.string(),
  max_bytes: z.int().min(1).default(9),
  env: z.record(z.string(), z.string()).optional(),
  parts: z.array(z.object({ name: z.string(), tag: z.string().optional() })).optional(),
  value: z.unknown(),
});

function validated(schema: z.ZodObject, value: unknown): unknown {
  const result = toolInput(schema)["~standard"].validate(value);
  if (result instanceof Promise) throw new Error("validation answers at once");
  return result.issues === undefined ? result.value : result.issues.map(({ message }) => message);
}

it("takes null as not given, at every depth, and keeps it in a value of any kind", () => {
  expect(
    validated(example, {
      sandbox: "a",
      max_bytes: null,
      env: { A: "1", B: null },
      parts: [{ name: "x", tag: null }],
      value: { n: [null], m: null },
    }),
  ).toEqual({
    sandbox: "a",
    max_bytes: 9,
    env: { A: "1" },
    parts: [{ name: "x" }],
    value: { n: [null], m: null },
  });
  expect(validated(example, { sandbox: "a", env: null, parts: null, value: null, other: null })).toEqual({
    sandbox: "a",
    max_bytes: 9,
    value: null,
  });
  expect(validated(example, { sandbox: null, value: 1 })).toEqual([
    expect.stringContaining("expected string, received undefined"),
  ]);
});

it("refuses unknown arguments by name, with the nearest known one", () => {
  expect(validated(example, { sandbox: "a", maxBytes: 1, parts: [{ name: "x", tags: "y" }] })).toEqual([
    'unknown argument "maxBytes"; did you mean max_bytes?',
    'unknown argument "tags"; did you mean tag?',
  ]);
  expect(validated(example, { sandbox: "a", wholly: 1 })).toEqual([
    'unknown argument "wholly"; it takes sandbox, max_bytes, env, parts, value',
  ]);
  expect(validated(example, { sandbox: "a", constructor: 1 })).toEqual([
    expect.stringContaining('unknown argument "constructor"'),
  ]);
});

it("names only some of very many faults", () => {
  const many = Object.fromEntries(Array.from({ length: 2_000 }, (_, index) => [`name${index}`, 1]));
  expect(validated(example, many)).toHaveLength(8);
  expect(validated(example, { sandbox: "a", parts: Object.keys(many) })).toHaveLength(8);
});

it.each([
  ["comand", "command"],
  ["sandbox_id", "sandbox"],
  ["old_string", "old_text"],
  ["timeoutSeconds", "timeout_seconds"],
  ["x", undefined],
])("nearest to %s is %s", (name, wanted) => {
  expect(nearestArgument(name, ["sandbox", "command", "timeout_seconds", "old_text"])).toBe(wanted);
});

/** Fields of `Schema` in the Gemini API that every version of it has taken in a function declaration. */
const dialect = new Set(
  "type description enum properties required items minimum maximum minLength maxLength minItems maxItems pattern".split(
    " ",
  ),
);

function check(schema: Record<string, unknown>, path: string): void {
  expect(
    Object.keys(schema).filter((name) => !dialect.has(name)),
    path,
  ).toEqual([]);
  expect(["string", "number", "integer", "boolean", "array", "object"], path).toContain(schema["type"]);
  if (schema["enum"] !== undefined) expect(schema["type"], path).toBe("string");
  if (schema["type"] === "array") check(schema["items"] as Record<string, unknown>, `${path}[]`);
  if (schema["type"] !== "object") return;
  const properties = Object.entries(schema["properties"] as Record<string, Record<string, unknown>>);
  expect(properties.length, path).toBeGreaterThan(0);
  for (const name of (schema["required"] ?? []) as string[])
    expect(
      properties.map(([one]) => one),
      path,
    ).toContain(name);
  for (const [name, one] of properties) check(one, `${path}.${name}`);
}

it("lists every tool in the dialect that Gemini takes", async () => {
  const [ours, theirs] = InMemoryTransport.createLinkedPair();
  const made = createMcpServer({ cloche: {} as Cloche, version: "0" });
  const client = new Client({ name: "test", version: "0" });
  await Promise.all([made.connect(ours), client.connect(theirs)]);
  const { tools } = await client.listTools();
  expect(tools.length).toBeGreaterThan(30);
  for (const { name, inputSchema } of tools) check(inputSchema, name);
  await made.close();
});
