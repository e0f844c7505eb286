import { IncomingMessage, ServerResponse } from "node:http";
import { Socket } from "node:net";
import type { Cloche } from "@cloche/sdk";
import { expect, it } from "vitest";
import { UnderWay } from "./under-way.ts";

const caller = (keyHash: string) => ({ keyHash, teamId: "team-a", cloche: {} as Cloche });

it("cuts the answers of a revoked key, also those without a session, and no others", async () => {
  const underWay = new UnderWay({ requestsPerKey: 2, requestsPerTeam: 8, bodyBytesPerTeam: 1 });
  const enter = (key: string): ServerResponse => {
    const response = new ServerResponse(new IncomingMessage(new Socket()));
    underWay.enter(key, caller(key), response, 0);
    return response;
  };
  const revoked = [enter("revoked"), enter("revoked")];
  const others = [enter("good"), enter("unknown now")];
  const ended = await underWay.cutRevoked(async (key) => {
    if (key === "unknown now") throw new Error("the database is away");
    return key === "good" ? "team-a" : undefined;
  });
  expect(ended.map(({ keyHash }) => keyHash)).toEqual(["revoked"]);
  expect(revoked.map(({ destroyed }) => destroyed)).toEqual([true, true]);
  expect(others.map(({ destroyed }) => destroyed)).toEqual([false, false]);
});
