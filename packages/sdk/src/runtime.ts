import { ClocheSdkError } from "./errors.ts";

type Platform = { process?: { versions?: { node?: string } }; crypto?: { randomUUID?: unknown } };

/** Throws in one line where the JavaScript runtime lacks what the SDK stands on. */
export function requireRuntime(platform: object = globalThis): void {
  const { process, crypto } = platform as Platform;
  const has: Record<string, unknown> = {
    fetch: Reflect.get(platform, "fetch"),
    ReadableStream: Reflect.get(platform, "ReadableStream"),
    "AbortSignal.any": (Reflect.get(platform, "AbortSignal") as { any?: unknown } | undefined)?.any,
    "crypto.randomUUID": crypto?.randomUUID,
  };
  const missing = Object.keys(has).filter((name) => typeof has[name] !== "function");
  if (missing.length === 0) return;
  const node = process?.versions?.node;
  const here = node === undefined ? "this runtime" : `Node ${node}`;
  throw new ClocheSdkError(
    `${here} is too old for @cloche/sdk (it has no ${missing.join(", ")}): use Node 20 or newer, Bun, Deno 2, or a browser of 2023 or newer`,
    { code: "unsupported_runtime" },
  );
}
