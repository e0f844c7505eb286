// Every way to be a stranger, against every gateway method and every data plane route: 401 and nothing else.
import { dataPlaneRoutes } from "@cloche/protocol";
import { beforeAll, describe, expect, inject, test } from "vitest";
import {
  dataPlaneRefusals,
  examplePath,
  gatewayRefusals,
  type Refusal,
} from "../conformance/auth-refusals.ts";
import { contractProblems } from "../conformance/contract-check.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { gatewayMethods } from "../conformance/surface-map.ts";
import type { WireAnswer } from "../conformance/wire.ts";
import { sharedClient } from "../fixtures/client.ts";

const { target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
let other: TestSandbox;
beforeAll(async () => {
  [sandbox, other] = await Promise.all([client.create(), client.create()]);
});

const headersOf = ({ authorization }: Refusal): Record<string, string> =>
  authorization === undefined ? {} : { authorization };

function refusalProblems(
  surface: "gateway" | "dataplane",
  answer: WireAnswer,
  method: string,
  path: string,
): string[] {
  const problems = contractProblems(surface, method, path, answer);
  if (answer.status !== 401) problems.push(`status ${answer.status}`);
  // An answer to HEAD has no body.
  if (method !== "HEAD" && !answer.body.toString().includes('"unauthenticated"'))
    problems.push(answer.body.toString());
  return problems;
}

describe("the gateway", () => {
  const paths = gatewayMethods.flatMap(({ path }) => [
    path,
    path.replace("cloche.public.v1", "svc.public.v1"),
  ]);

  test.each(paths)("refuses strangers at %s", async (path) => {
    for (const refusal of gatewayRefusals(target, sandbox)) {
      const headers = { "content-type": "application/json", ...headersOf(refusal) };
      const request = { method: "POST", path, headers, body: Buffer.from("{}") };
      const answer = await client.session.wire.gateway(request);
      expect(refusalProblems("gateway", answer, "POST", path), refusal.name).toEqual([]);
    }
  });
});

describe("the data plane", () => {
  test.each(dataPlaneRoutes)("refuses strangers at $method $path", async ({ method, path: template }) => {
    const path = examplePath(template);
    const refusals = dataPlaneRefusals(target, sandbox, other, Date.now());
    expect(refusals.length).toBeGreaterThan(20);
    for (const refusal of refusals) {
      const body =
        method === "GET" || method === "HEAD" ? undefined : Buffer.from('{"cmd":["true"],"value":1}');
      const request = { method, path, headers: headersOf(refusal), body };
      const answer = await client.session.wire.dataPlane(sandbox.domain, request);
      expect(refusalProblems("dataplane", answer, method, path), refusal.name).toEqual([]);
    }
  });

  test("takes the true token all the while", async () => {
    expect((await client.exec(sandbox, ["echo", "hi"])).stdout).toBe("hi\n");
  });

  test("takes nobody's word on the inner channel", async () => {
    for (const path of ["/cloche.guest.v1.GuestService/Assign", "/cloche.guest.v1.GuestService/Quiesce"]) {
      for (const token of [sandbox.token, target.apiKey, ""]) {
        const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
        const request = { method: "POST", path, headers, body: Buffer.from("{}") };
        expect([401, 404]).toContain((await client.session.wire.dataPlane(sandbox.domain, request)).status);
      }
    }
  });
});
