import { get } from "node:http";
import { silentLog } from "@cloche/base";
import { afterEach, beforeEach, expect, it } from "vitest";
import { createE2b, type E2bEndpoint } from "./endpoint.ts";

const sandbox = "sbx-aaaaaaaaaaaaaaaaaaaa";
let endpoint: E2bEndpoint;
let url: string;

beforeEach(async () => {
  endpoint = createE2b({
    gatewayUrl: "http://127.0.0.1:1",
    edgeUrl: "http://127.0.0.1:1",
    caCert: "",
    baseDomain: "x.test",
    edgePort: 8443,
    secret: Buffer.alloc(32),
    ownKey: "own",
    teamOf: async () => undefined,
    log: silentLog,
  });
  url = `http://127.0.0.1:${await endpoint.listen(0, "127.0.0.1")}`;
});
afterEach(() => endpoint.close());

it("without an edge beside it says where the ports of sandboxes are", async () => {
  const answer = await fetch(url, { headers: { "e2b-sandbox-id": sandbox, "e2b-sandbox-port": "8000" } });
  expect(answer.status).toBe(421);
  expect(await answer.json()).toEqual({
    code: 421,
    message: expect.stringContaining(`https://8000-${sandbox}.x.test:8443`),
  });
});

it("answers 400 to a target that is no URL's", async () => {
  const { port } = new URL(url);
  const status = await new Promise((resolve, reject) =>
    get({ port, path: "//" }, (answer) => resolve(answer.resume().statusCode)).once("error", reject),
  );
  expect(status).toBe(400);
});
