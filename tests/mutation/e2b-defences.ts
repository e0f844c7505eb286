// Defences of the E2B-compatible endpoint (defences.ts).
import type { Defence } from "./defence.ts";

export const e2bDefences: readonly Defence[] = [
  {
    what: "the token of an E2B client's sandbox opens no other",
    file: "packages/e2b/src/access-token.ts",
    find: "const boundTo = (sandboxId: string): Buffer => Buffer.from(sandboxId);",
    replace: "const boundTo = (sandboxId: string): Buffer => Buffer.alloc(sandboxId.length * 0);",
    project: "unit",
    test: "packages/e2b/src/access-token.test.ts",
    named: "another sandbox's",
  },
  {
    what: "a neighbour of the edge answers for the name of the TLS connection alone",
    file: "packages/edge/src/neighbour.ts",
    find: "if (servername !== undefined && servername !== name) return false;",
    replace: "if (servername === name.slice(0, 0)) return false;",
    project: "unit",
    test: "packages/edge/src/neighbour.test.ts",
    named: "was not made for",
  },
  {
    what: "a signed URL of an E2B client expires",
    file: "packages/e2b/src/envd/signed-url.ts",
    find: "if (expiration !== null && !(Number(expiration) > Date.now() / 1_000))",
    replace: "if (expiration !== null && Number(expiration) === -1)",
    project: "unit",
    test: "packages/e2b/src/envd/signed-url.test.ts",
    named: "expired",
  },
];
