import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ServiceLog } from "./service-log.ts";

let folder: string;
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), "cloche-log-")), "log");
});
afterEach(() => rmSync(join(folder, ".."), { recursive: true, force: true }));

const never = new AbortController().signal;
async function text(log: ServiceLog, position = log.start): Promise<string> {
  const blocks: Buffer[] = [];
  for await (const block of log.read(position, false, never)) blocks.push(block);
  return Buffer.concat(blocks).toString();
}

describe("ServiceLog", () => {
  it("keeps the newest output across rotations and restarts", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.string({ minLength: 1, maxLength: 60 }), fc.boolean()), { maxLength: 40 }),
        async (steps) => {
          rmSync(folder, { recursive: true, force: true });
          let log = new ServiceLog(folder, 100);
          let all = Buffer.alloc(0);
          for (const [line, restart] of steps) {
            const bytes = Buffer.from(`${line}\n`);
            await log.append(bytes);
            all = Buffer.concat([all, bytes]);
            if (restart) {
              await log.close();
              log = new ServiceLog(folder, 100);
            }
          }
          expect(log.end).toBe(all.length);
          expect(await text(log)).toBe(all.subarray(log.start).toString());
          if (all.length > 500) expect(log.end - log.start).toBeLessThan(500);
          await log.close();
          if (all.length > 0) expect(readdirSync(folder).length).toBeLessThanOrEqual(2);
        },
      ),
      { numRuns: 60 },
    );
  });

  it("answers the last lines", async () => {
    const log = new ServiceLog(folder, 1_000_000);
    const lines = Array.from({ length: 20_000 }, (_, index) => `line ${index}`);
    await log.append(Buffer.from(`${lines.join("\n")}\n`));
    for (const count of [0, 1, 2, 7, 15_000, 20_000, 30_000]) {
      const tail = await text(log, await log.tailPosition(count));
      expect(tail).toBe(count === 0 ? "" : `${lines.slice(-count).join("\n")}\n`);
    }
    await log.append(Buffer.from("unfinished"));
    expect(await text(log, await log.tailPosition(2))).toBe("line 19999\nunfinished");
    await log.close();
  });

  it("follows what comes, over rotations, until it is called off or closed", async () => {
    const log = new ServiceLog(folder, 50);
    await log.append(Buffer.from("before\n"));
    const stop = new AbortController();
    let seen = "";
    const following = (async () => {
      for await (const block of log.read(log.start, true, stop.signal)) {
        seen += block.toString();
        if (seen.endsWith("10\n")) stop.abort();
      }
    })();
    let sent = "before\n";
    for (let index = 0; index <= 10; index += 1) {
      sent += `line number ${index}\n`;
      await log.append(Buffer.from(`line number ${index}\n`));
      while (!seen.endsWith(`${index}\n`)) await new Promise((resolve) => setImmediate(resolve));
    }
    await following;
    expect(seen).toBe(sent);
    const untilClosed = (async () => {
      for await (const block of log.read(log.end, true, never)) expect(block).toBeUndefined();
    })();
    await log.close();
    await untilClosed;
  });
});
