import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseAllowedDomain } from "@cloche/protocol";
import { expect, it, onTestFinished, vi } from "vitest";
import type { ElementChange, Native } from "../sys/native.ts";
import { parseSubnet } from "./address.ts";
import { addressesIn, answerOf, rcodeOf } from "./dns-answer.ts";
import { parseQuery, rcodeServerFailure } from "./dns-message.ts";
import { resolvedMax } from "./resolved.ts";
import { SlotEgress } from "./slot-egress.ts";

const slot = 1;
const query = Buffer.from("00070100000100000000000001610474657374000001 0001".replace(" ", ""), "hex");

/** A sandbox that may ask for names below `test`, what was done in the kernel, and answers with new addresses. */
async function sandbox() {
  vi.useFakeTimers({ toFake: ["Date", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const stateDir = await mkdtemp(join(tmpdir(), "egress-"));
  onTestFinished(() => rm(stateDir, { recursive: true }));
  const transactions: (readonly ElementChange[])[] = [];
  let programs = 0;
  const native = {
    changeElements: async (_router: string, _table: string, changes: readonly ElementChange[]) =>
      void transactions.push(changes),
    exec: async () => ({ pid: 1, exitCode: 0, count: (programs += 1) }),
  } as unknown as Native;
  const egress = new SlotEgress({ native, tag: "t", stateDir }, parseSubnet("10.231.0.0/16"));
  await egress.add(slot);
  await egress.set(slot, {
    mode: "list",
    allow: [],
    domains: [parseAllowedDomain("*.test") ?? fail()].flat(),
  });
  [transactions.length, programs] = [0, 0];
  const question = parseQuery(query) ?? fail();
  let made = 0;
  const answer = async (count: number): Promise<Buffer> => {
    const fresh = Array.from({ length: count }, () => {
      made += 1;
      return { address: `12.0.${made >> 8}.${made & 255}`, ttlSeconds: 60 };
    });
    return egress.after(slot, question, query, answerOf(query, question, fresh));
  };
  const addresses = (message: Buffer): number => addressesIn(message, question)?.length ?? 0;
  return { answer, addresses, transactions, programs: () => programs };
}

function fail(): never {
  throw new Error("a word of this test is wrong");
}

it("starts no program for an answer, whether it is new or pushes others out", async () => {
  const { answer, addresses, transactions, programs } = await sandbox();
  for (let asked = 0; asked < resolvedMax; asked += 64) expect(addresses(await answer(64))).toBe(64);
  expect(transactions.flat()).toHaveLength(resolvedMax);
  expect(Math.max(...transactions.map((changes) => changes.length))).toBeLessThanOrEqual(60);
  expect(programs()).toBe(0);
});

it("lets a sandbox learn no more addresses than it may have, and then some each second", async () => {
  const { answer, addresses, transactions } = await sandbox();
  for (let asked = 0; asked < resolvedMax; asked += 64) await answer(64);
  const before = transactions.length;
  expect(rcodeOf(await answer(64))).toBe(rcodeServerFailure);
  expect(transactions).toHaveLength(before);
  vi.advanceTimersByTime(50);
  expect(addresses(await answer(1))).toBe(1);
});

it("goes on when the computer's clock is set back", async () => {
  const { answer, addresses } = await sandbox();
  await answer(1);
  vi.setSystemTime(Date.now() - 3_600_000);
  expect(addresses(await answer(1))).toBe(1);
});

it("passes on no more than 64 addresses of an answer", async () => {
  const { answer, addresses } = await sandbox();
  expect(addresses(await answer(200))).toBe(64);
});
