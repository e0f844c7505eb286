import { describe, expect, it } from "vitest";
import { CleanupStack } from "./cleanup.ts";
import { SerialQueue } from "./serial-queue.ts";

describe("CleanupStack", () => {
  it("undoes newest first when the body throws, and joins what failed", async () => {
    const log: string[] = [];
    const run = CleanupStack.guard(async (stack) => {
      stack.push("mount", () => void log.push("umount"));
      stack.push("loop", () => {
        log.push("detach");
        throw new Error("busy");
      });
      stack.push("process", () => void log.push("kill"));
      throw new Error("no agent");
    });
    await expect(run).rejects.toMatchObject({
      message: "no agent",
      errors: [{ message: "no agent" }, { message: /loop/ }],
    });
    expect(log).toEqual(["kill", "detach", "umount"]);
  });

  it("undoes nothing after success", async () => {
    const log: string[] = [];
    const value = await CleanupStack.guard(async (stack) => {
      stack.push("x", () => void log.push("x"));
      return 7;
    });
    expect([value, log]).toEqual([7, []]);
  });
});

describe("SerialQueue", () => {
  it("runs one key in order, other keys beside it, and goes on after a failure", async () => {
    const queue = new SerialQueue();
    const log: string[] = [];
    let open = (): void => undefined;
    const gate = new Promise<void>((resolve) => {
      open = resolve;
    });
    const first = queue.run("a", async () => {
      await gate;
      log.push("a1");
      throw new Error("a1 failed");
    });
    const second = queue.run("a", async () => void log.push("a2"));
    await queue.run("b", async () => void log.push("b1"));
    expect(log).toEqual(["b1"]);
    open();
    await expect(first).rejects.toThrow("a1 failed");
    await second;
    await queue.drain();
    expect(log).toEqual(["b1", "a1", "a2"]);
    expect(queue.busyKeys).toBe(0);
  });
});
