import type { ServerResponse } from "node:http";
import { expect, it } from "vitest";
import { http2Client } from "../testing/http2-client.ts";
import { baseDomain, Rig, until } from "../testing/rig.ts";

it("tells that it is closed, as an answer of HTTP/1.1 does, once the client reset its stream", async () => {
  const answers: ServerResponse[] = [];
  let closes = 0;
  const neighbour = {
    takes: () => true,
    answer: (_request: unknown, response: ServerResponse) => {
      answers.push(response.once("close", () => (closes += 1)));
    },
  };
  await using rig = await Rig.start({ neighbour });
  using session = http2Client(rig, "api");
  const stream = session.request({ ":path": "/", ":authority": `api.${baseDomain}`, ":method": "POST" });
  stream.on("error", () => undefined);
  stream.write("a part");
  await until(() => answers.length === 1);
  expect(answers[0]?.closed).toBe(false);
  stream.close(8);
  await until(() => closes === 1);
  expect(answers[0]?.closed).toBe(true);
});

it("tells how much the client has not taken, as an answer of HTTP/1.1 does", async () => {
  let answer: ServerResponse | undefined;
  const neighbour = {
    takes: () => true,
    answer: (_request: unknown, response: ServerResponse) =>
      void (answer = response).end("x".repeat(1_000_000)),
  };
  await using rig = await Rig.start({ neighbour });
  using session = http2Client(rig, "api");
  const stream = session.request({ ":path": "/", ":authority": `api.${baseDomain}` });
  await until(() => answer !== undefined);
  expect(answer?.writableLength).toBeGreaterThan(900_000);
  stream.resume();
  await until(() => answer?.writableLength === 0);
});
