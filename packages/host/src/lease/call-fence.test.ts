import { type Fence, fenceText, internalHeaders } from "@cloche/protocol";
import { beforeEach, describe, expect, it } from "vitest";
import { CallFence, fencesMax, openGate } from "./call-fence.ts";

const lease = { generation: 3 as number | undefined, isHeld: true };
let fence: CallFence;

const headers = (generation: number | undefined, operation?: Fence | string): Headers => {
  const all = new Headers();
  if (generation !== undefined) all.set(internalHeaders.hostGeneration, String(generation));
  if (operation !== undefined)
    all.set(internalHeaders.operation, typeof operation === "string" ? operation : fenceText(operation));
  return all;
};
const of = (number: number, attempt: number): Headers => headers(3, { number, attempt });
const refusal = (act: () => unknown): string => {
  try {
    act();
    return "";
  } catch (error) {
    return (error as { code: string }).code;
  }
};

beforeEach(() => {
  Object.assign(lease, { generation: 3, isHeld: true });
  fence = new CallFence(lease);
});

describe("a host in a cluster", () => {
  it("takes calls for its own generation only", () => {
    for (const other of [2, 4, undefined]) {
      expect(refusal(() => fence.check(headers(other)))).toBe("aborted");
      expect(refusal(() => fence.change(headers(other), "sbx-a"))).toBe("aborted");
    }
    expect(refusal(() => fence.check(headers(3)))).toBe("");
    lease.generation = undefined;
    expect(refusal(() => fence.check(headers(3)))).toBe("unavailable");
  });

  it("takes no operation older than the newest it has seen of the sandbox", () => {
    fence.change(of(7, 2), "sbx-a");
    for (const [number, attempt] of [
      [7, 1],
      [6, 9],
    ] as const)
      expect(refusal(() => fence.change(of(number, attempt), "sbx-a"))).toBe("aborted");
    for (const [number, attempt] of [
      [7, 2],
      [7, 3],
      [10, 1],
    ] as const)
      expect(refusal(() => fence.change(of(number, attempt), "sbx-a"))).toBe("");
    expect(refusal(() => fence.change(of(1, 1), "sbx-b"))).toBe("");
    // Calls of no operation.
    expect(refusal(() => fence.change(headers(3), "sbx-a"))).toBe("");
    expect(refusal(() => fence.change(headers(3, "7"), "sbx-a"))).toBe("invalid_argument");
  });

  it("changes nothing while its lease is over, and still answers who looks", () => {
    lease.isHeld = false;
    expect(refusal(() => fence.change(headers(3)))).toBe("unavailable");
    expect(refusal(() => fence.check(headers(3)))).toBe("");
  });

  it("asks again when the turn of a call has come", () => {
    const first = fence.change(of(7, 1), "sbx-a");
    const second = fence.change(of(7, 2), "sbx-a");
    expect(refusal(first)).toBe("aborted");
    expect(refusal(second)).toBe("");
    lease.isHeld = false;
    expect(refusal(second)).toBe("unavailable");
    Object.assign(lease, { generation: 4, isHeld: true });
    expect(refusal(second)).toBe("aborted");
  });

  it("remembers the sandboxes that it worked with last", () => {
    fence.change(of(7, 1), "sbx-a");
    fence.change(of(7, 1), "sbx-b");
    fence.change(of(7, 1), "sbx-a");
    for (let other = 0; other < fencesMax - 1; other += 1) fence.change(of(1, 1), `other-${other}`);
    expect(refusal(() => fence.change(of(6, 1), "sbx-a"))).toBe("aborted");
    expect(refusal(() => fence.change(of(6, 1), "sbx-b"))).toBe("");
  });
});

it("a host in no cluster takes calls without headers", () => {
  openGate.check(new Headers());
  openGate.change(new Headers(), "sbx-a")();
});
