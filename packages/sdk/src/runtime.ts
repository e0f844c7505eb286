import { ClocheSdkError } from "./errors.ts";

/** Throws a clear error if the JavaScript runtime lacks what the SDK needs. Checks with `in`, because Node loads modules on access. */
export function requireRuntime(platform: object = globalThis): void {
  const missing = ["fetch", "ReadableStream", "crypto"].filter((name) => !(name in platform));
  const signals = Reflect.get(platform, "AbortSignal") as { any?: unknown } | undefined;
  if (typeof signals?.any !== "function") missing.push("AbortSignal.any");
  if (missing.length === 0) return;
  const { process } = platform as { process?: { versions?: { node?: string } } };
  const node = process?.versions?.node;
  const here = node === undefined ? "this runtime" : `Node ${node}`;
  throw new ClocheSdkError(
    `${here} is too old for @cloche/sdk (it has no ${missing.join(", ")}): use Node 20 or newer, Bun, Deno 2, or a browser of 2023 or newer`,
    { code: "unsupported_runtime" },
  );
}
