import { expect, it } from "vitest";
import type { Neighbour } from "./neighbour.ts";
import { http2Client, replyOf } from "../testing/http2-client.ts";
import { baseDomain, Rig } from "../testing/rig.ts";
import { sandboxA } from "../testing/fake-gateway.ts";

const neighbour: Neighbour = {
  takes: ({ headers }) => (headers.host ?? "").startsWith("api."),
  answer: (request, response, _asked) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => response.end(`neighbour ${request.method} ${Buffer.concat(chunks).toString()}`));
  },
};

it("gives a neighbour what it takes, bodies and all, and sandboxes the rest", async () => {
  await using rig = await Rig.start({ neighbour });
  const host = `api.${baseDomain}`;
  const ask = { method: "POST", path: "/sandboxes", headers: { host }, servername: host, body: "{}" };
  const answer = await rig.ask(ask);
  expect([answer.status, answer.body]).toEqual([200, "neighbour POST {}"]);
  await rig.ask({ path: "/v1/store" });
  expect(rig.seen.map(({ url }) => url)).toEqual(["/v1/store"]);
});

it("gives it requests of HTTP/2 too, and cuts an answer that breaks off", async () => {
  const breaking: Neighbour = {
    ...neighbour,
    answer: (request, response, asked) => {
      if (request.url !== "/breaks") return neighbour.answer(request, response, asked);
      response.writeHead(200);
      response.write("a part");
      setTimeout(() => response.destroy(), 50);
    },
  };
  await using rig = await Rig.start({ neighbour: breaking });
  using session = http2Client(rig, "api");
  const headers = { ":path": "/x", ":authority": `api.${baseDomain}`, ":method": "POST" };
  const whole = session.request(headers);
  whole.end("{}");
  expect(await replyOf(whole)).toMatchObject({ status: 200, body: "neighbour POST {}" });
  const broken = session.request({ ...headers, ":path": "/breaks", ":method": "GET" });
  await expect(replyOf(broken)).rejects.toThrow("INTERNAL_ERROR");
});

it("answers 500, and goes on, where a request makes what routes it throw", async () => {
  const takes = (): boolean => {
    throw new TypeError("Invalid URL");
  };
  await using rig = await Rig.start({ neighbour: { ...neighbour, takes } });
  for (let count = 0; count < 2; count += 1) expect((await rig.ask({ path: "/v1/store" })).status).toBe(500);
  using session = http2Client(rig);
  const stream = session.request({ ":path": "/v1/store", ":authority": rig.host() });
  expect((await replyOf(stream)).status).toBe(500);
});

it("has no neighbour unless one is given", async () => {
  await using rig = await Rig.start();
  expect((await rig.ask({ path: "/", headers: { host: `api.${baseDomain}` } })).status).toBe(404);
});

it("refuses a name that the TLS connection was not made for", async () => {
  await using rig = await Rig.start({ neighbour });
  const headers = { host: `api.${baseDomain}` };
  const answer = await rig.ask({ path: "/", headers, servername: `${sandboxA}.${baseDomain}` });
  expect(answer.body).not.toContain("neighbour");
  expect(answer.status).toBeGreaterThanOrEqual(400);
});
