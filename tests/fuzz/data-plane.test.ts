// Requests that nobody meant, to every route of the data plane: never a 5xx, always the contract's shapes, and the sandbox
// and the service go on.
import { dataPlaneRoutes } from "@cloche/protocol";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { contractProblems } from "../conformance/contract-check.ts";
import type { TestSandbox } from "../conformance/session.ts";
import type { WireAnswer, WireRequest } from "../conformance/wire.ts";
import { sharedClient } from "../fixtures/client.ts";
import { patience, plan } from "./seed.ts";

const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
  await client.shell(
    sandbox,
    "mkdir -p /tmp/fuzz/dir; echo text > /tmp/fuzz/file; ln -s loop /tmp/fuzz/loop",
  );
});
afterAll(async () => {
  const result = await client.exec(sandbox, ["echo", "alive"]);
  expect(result.stdout).toBe("alive\n");
});

const strange = fc.oneof(
  fc.string({ unit: "binary", maxLength: 40 }),
  fc.constantFrom(
    "",
    "..",
    ".",
    "%",
    "%zz",
    "\0",
    "\ud800",
    "a".repeat(5_000),
    "../../etc",
    "-1",
    "1e999",
    "NaN",
  ),
);
// Nothing here may harm what later requests rely on: paths stay below /tmp/fuzz or lead nowhere.
const path = fc.oneof(
  fc.constantFrom(
    "/tmp/fuzz",
    "/tmp/fuzz/file",
    "/tmp/fuzz/dir",
    "/tmp/fuzz/loop",
    "/tmp/fuzz/none",
    "/proc/self/mem",
  ),
  strange.map((text) => `/tmp/fuzz/${text.replaceAll("..", "")}`),
  strange.filter((text) => !text.startsWith("/")),
);
const name = fc.oneof(fc.constantFrom("web", "db", "a".repeat(64)), strange);
const scalar = fc.oneof(
  fc.constantFrom<unknown>(null, true, false, 0, -1, 1.5, 2 ** 53, 1e308, "", [], {}, [[]], { a: { b: [] } }),
  strange,
);
const fieldNames = [
  "cmd",
  "dir",
  "env",
  "stdin",
  "user",
  "timeout_ms",
  "parents",
  "name",
  "checkpoint_id",
  "poll_interval_ms",
  "value",
  "ttl_seconds",
  "operations",
  "args",
  "needs",
  "health_port",
  "container",
  "image",
  "working_dir",
  "recursive",
  "group",
  "once",
  "expires_in_seconds",
  "path_encoded",
  "__proto__",
  "constructor",
];
const command = fc.oneof(
  fc.constantFrom<unknown>(["true"], ["echo", "x"], ["sh", "-c", "exit 3"], ["no-such-program"]),
  scalar,
);
const jsonBody = fc
  .record(
    {
      cmd: command,
      path,
      source: path,
      destination: path,
      mode: fc.oneof(fc.constantFrom("0644", "7777", "8"), scalar),
      operation: fc.constantFrom<unknown>("read", "write", "delete", null),
      // Bounded, or a command or a wait could outlast the run.
      timeout_ms: fc.oneof(fc.constant(500), scalar),
      timeout_secs: fc.constantFrom<unknown>(0, 1, -1, "1", null, 1.5),
      extra: fc.dictionary(fc.constantFrom(...fieldNames), scalar, { maxKeys: 5 }),
    },
    { requiredKeys: [] },
  )
  .map(({ extra, ...fields }) => JSON.stringify({ ...extra, ...fields }));
const body = fc.oneof(
  { weight: 6, arbitrary: jsonBody.map((text) => Buffer.from(text)) },
  { weight: 1, arbitrary: fc.json().map((text) => Buffer.from(text)) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)) },
  { weight: 1, arbitrary: jsonBody.map((text) => Buffer.from(text.slice(0, -1))) },
);

const asSegment = (text: string): string => {
  try {
    return encodeURIComponent(text);
  } catch {
    return "%ED%A0%80";
  }
};
const query = fc
  .dictionary(
    fc.constantFrom(
      "path",
      "depth",
      "recursive",
      "prefix",
      "limit",
      "cursor",
      "follow",
      "append",
      "as_user",
      "nonsense",
    ),
    fc.oneof(path, strange, fc.constantFrom("1", "true", "0")),
    { maxKeys: 3 },
  )
  // Following a log never ends by itself.
  .map((pairs) =>
    Object.entries(pairs)
      .filter(([key]) => key !== "follow")
      .map(([key, value]) => `${key}=${asSegment(value)}`)
      .join("&"),
  );
const request: fc.Arbitrary<WireRequest> = fc
  .tuple(fc.constantFrom(...dataPlaneRoutes), name, query, body, fc.boolean())
  // Snapshots of the whole disk are tried elsewhere; here they would fill it. A watch does not end by itself.
  .filter(([route]) => route.path !== "/v1/checkpoint" && route.path !== "/v1/files/watch")
  .map(([route, segment, search, bytes, withBody]) => ({
    method: route.method,
    path: `${route.path.replace(/:\w+|\*/, asSegment(segment))}${search === "" ? "" : `?${search}`}`,
    body: withBody || route.method !== "GET" ? bytes : undefined,
    deadlineMs: 90_000,
  }));

const send = (one: WireRequest): Promise<WireAnswer> =>
  client.session.wire.dataPlane(sandbox.domain, {
    ...one,
    headers: { authorization: `Bearer ${sandbox.token}`, ...one.headers },
  });

test("strange requests get an answer of the contract", { timeout: patience(400_000) }, async () => {
  await fc.assert(
    fc.asyncProperty(request, async (one) => {
      const answer = await send(one);
      expect(contractProblems("dataplane", one.method, one.path, answer)).toEqual([]);
    }),
    plan(600),
  );
});

test("strange paths get an answer of the contract", { timeout: patience(200_000) }, async () => {
  const segment = fc.oneof(
    fc.constantFrom("v1", "files", "exec", "store", "services", "checkpoint"),
    strange,
  );
  const strangePath = fc
    .array(segment, { maxLength: 6 })
    .map((parts) => `/${parts.map(asSegment).join("/")}`);
  const method = fc.constantFrom("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE");
  await fc.assert(
    fc.asyncProperty(method, strangePath, async (verb, where) => {
      fc.pre(where !== "/v1/checkpoint" && where.length < 16_000);
      const answer = await send({ method: verb, path: where });
      expect(contractProblems("dataplane", verb, where, answer)).toEqual([]);
    }),
    plan(300),
  );
});

test("no changed token opens anything", { timeout: patience(200_000) }, async () => {
  const { token } = sandbox;
  const change = fc.tuple(fc.nat(token.length - 1), fc.constantFrom(..."Aa0-_.Zz9"));
  await fc.assert(
    fc.asyncProperty(fc.array(change, { minLength: 1, maxLength: 4 }), async (changes) => {
      const letters = Array.from(token);
      for (const [at, letter] of changes) letters[at] = letter;
      const changed = letters.join("");
      fc.pre(decoded(changed) !== decoded(token));
      const answer = await send({
        method: "GET",
        path: "/v1/services",
        headers: { authorization: `Bearer ${changed}` },
      });
      expect(answer.status).toBe(401);
    }),
    plan(300),
  );
});

/** What a token says in bytes: the last letter of a part holds bits that no decoder reads. */
const decoded = (token: string): string =>
  token
    .split(".")
    .map((part) => Buffer.from(part, "base64url").toString("hex"))
    .join(".");

test("values survive the store whatever they are", { timeout: patience(200_000) }, async () => {
  const key = fc
    .string({ unit: "grapheme", minLength: 1, maxLength: 60 })
    .filter((text) => ![".", ".."].includes(text));
  await fc.assert(
    fc.asyncProperty(key, fc.jsonValue({ noUnicodeString: false }), async (where, value) => {
      const at = `/v1/store/${encodeURIComponent(where)}`;
      fc.pre(where !== "batch");
      const set = await send({ method: "PUT", path: at, body: Buffer.from(JSON.stringify({ value })) });
      expect(set.status, set.body.toString()).toBe(200);
      const got = JSON.parse((await send({ method: "GET", path: at })).body.toString()) as { value: unknown };
      expect(JSON.stringify(got.value)).toBe(JSON.stringify(value));
    }),
    plan(150),
  );
});
