import { allowedMethods, dataPlaneRoutes } from "@cloche/protocol";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type AgentFixture, startAgent } from "../testing/agent-fixture.ts";

let fixture: AgentFixture;
beforeAll(async () => {
  fixture = await startAgent();
  await fixture.assign();
});
afterAll(() => fixture.close());

const paths = new Set(
  dataPlaneRoutes.filter(({ answeredBy }) => answeredBy === "agent").map(({ path }) => path),
);

test.each([...paths])("%s names its methods to another one, and only to who may ask", async (template) => {
  const path = template.replaceAll(/:[a-z]+/g, "1").replace("*", "key");
  for (const method of ["PATCH", "OPTIONS"]) {
    const { status, headers, json } = await fixture.call(method, path);
    expect([status, json["code"]], method).toEqual([405, "unimplemented"]);
    expect(new Set(headers.allow?.split(", "))).toEqual(new Set(allowedMethods(path)));
  }
  expect((await fixture.call("PATCH", path, { authorization: "" })).status).toBe(401);
});
