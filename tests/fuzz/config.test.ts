// Settings that nobody meant, in the environment and in the file: read as what they say, or refused with the name of the setting.
import { ConfigError, loadConfig } from "@cloche/base";
import fc from "fast-check";
import { expect, test } from "vitest";
import { patience, plan } from "./seed.ts";

const defaults = loadConfig({}, () => undefined);
const keys = Object.keys(defaults);
const snake = (key: string): string => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const text = fc.oneof(
  fc.constantFrom(
    "",
    "0",
    "-1",
    "1e9",
    "NaN",
    "true",
    "auto",
    "/",
    "/tmp/x",
    "..",
    "10.0.0.0/16",
    "999.1.0.0/16",
    "s3://",
    "https://x",
    "\0",
    "${HOME}",
    "a".repeat(3_000),
  ),
  fc.string({ unit: "binary", maxLength: 20 }),
);
const yaml = fc.oneof(
  fc
    .dictionary(fc.constantFrom(...keys.map(snake), "unknown", "__proto__"), fc.oneof(text, fc.jsonValue()), {
      maxKeys: 5,
    })
    .map((value) => JSON.stringify(value)),
  fc.string({ unit: "binary", maxLength: 60 }),
  fc.constantFrom("- a", "a: &x [*x]", "a: !!js/function x", "%YAML 9.9", "{", "a: b: c", "\t", "---\n---\n"),
);

test("settings are read or refused by name", { timeout: patience(120_000) }, () => {
  let read = 0;
  fc.assert(
    fc.property(
      fc.dictionary(fc.constantFrom(...keys.map((key) => `CLOCHE_${snake(key).toUpperCase()}`)), text, {
        maxKeys: 3,
      }),
      fc.option(yaml, { nil: undefined }),
      (env, file) => {
        let config: Record<string, unknown>;
        try {
          config = loadConfig(env, () => file) as never;
        } catch (error) {
          expect(error, String((error as Error).stack)).toBeInstanceOf(ConfigError);
          return;
        }
        read += 1;
        expect(Object.keys(config).sort()).toEqual([...keys].sort());
        for (const key of keys) {
          expect(typeof config[key], key).toBe(typeof defaults[key as keyof typeof defaults]);
          if (typeof config[key] === "number") expect(Number.isFinite(config[key]), key).toBe(true);
        }
      },
    ),
    plan(3_000),
  );
  expect(read, "some are good, or this proves nothing").toBeGreaterThan(20);
});
