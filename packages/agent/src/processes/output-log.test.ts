import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { OutputLog, outputChange } from "./output-log.ts";

/** All that a reader gets from `offset` on, and the gaps it is told of. */
function read(
  log: OutputLog,
  offset = 0,
  maxBytes = 7,
): { text: string; gaps: [number, number][]; end: number } {
  let [at, text] = [offset, ""];
  const gaps: [number, number][] = [];
  for (;;) {
    const piece = log.at(at, maxBytes);
    if (piece.kind === "nothing") return { text, gaps, end: at };
    if (piece.kind === "gap") gaps.push([at, piece.to]);
    else text += piece.data.toString("latin1");
    at = piece.kind === "gap" ? piece.to : at + piece.data.length;
  }
}

describe("an output log", () => {
  it("keeps the newest, and tells of what is gone", () => {
    const log = new OutputLog(5, "newest");
    log.append(Buffer.from("abc"));
    expect(read(log)).toEqual({ text: "abc", gaps: [], end: 3 });
    log.append(Buffer.from("defgh"));
    expect(read(log)).toEqual({ text: "defgh", gaps: [[0, 3]], end: 8 });
    expect(read(log, 6)).toEqual({ text: "gh", gaps: [], end: 8 });
    expect(log).toMatchObject({ totalBytes: 8, startOffset: 3, truncated: true });
  });

  it("keeps the first, where an answer begins with it", () => {
    const log = new OutputLog(5, "first");
    log.append(Buffer.from("abcd"));
    log.append(Buffer.from("efgh"));
    expect(read(log)).toEqual({ text: "abcde", gaps: [[5, 8]], end: 8 });
    expect(log.toString("utf8")).toBe("abcde");
    expect(log.truncated).toBe(true);
  });

  it("is not truncated by exactly what it keeps", () => {
    for (const keep of ["first", "newest"] as const) {
      const log = new OutputLog(4, keep);
      log.append(Buffer.from("abcd"));
      expect(log.truncated).toBe(false);
    }
  });

  it("tells bytes that are no UTF-8 as U+FFFD, and as they are in base64", () => {
    const log = new OutputLog(100, "first");
    log.append(Buffer.from([0x61, 0xff]));
    expect(log.toString("utf8")).toBe("a\ufffd");
    expect(log.toString("base64")).toBe("Yf8=");
  });

  it("never changes what a reader was given", () => {
    const log = new OutputLog(10, "newest");
    log.append(Buffer.from("abc"));
    const piece = log.at(0, 100);
    log.append(Buffer.from("defghijklmnop"));
    expect(piece).toMatchObject({ kind: "data" });
    expect((piece as { data: Buffer }).data.toString()).toBe("abc");
  });

  it("takes little more memory than it keeps, whatever the chunks", () => {
    for (const bytes of [1, 13, 1_000, 65_524]) {
      const log = new OutputLog(200_000, "newest");
      for (let sent = 0; sent < 1_000_000; sent += bytes) log.append(Buffer.alloc(bytes, 97));
      expect(log.memoryBytes).toBeLessThan(200_000 + 2 * 65_536);
    }
    const small = new OutputLog(1_000_000, "newest");
    small.append(Buffer.from("ok\n"));
    expect(small.memoryBytes).toBeLessThan(1_024);
  });

  it("does not keep a large read alive for a small part of it", () => {
    const log = new OutputLog(1_000_000, "newest");
    const whole = Buffer.allocUnsafeSlow(200_000);
    log.append(whole.subarray(0, 20_000));
    expect(log.memoryBytes).toBeLessThan(100_000);
  });

  it("holds what was written, whatever is written and read in between", () => {
    const chunk = fc.uint8Array({ minLength: 1, maxLength: 40 });
    fc.assert(
      fc.property(fc.array(chunk, { maxLength: 60 }), fc.integer({ min: 1, max: 300 }), (chunks, limit) => {
        const log = new OutputLog(limit, "newest");
        let all = "";
        for (const one of chunks) {
          log.append(Buffer.from(one));
          all += Buffer.from(one).toString("latin1");
          const from = Math.max(0, all.length - limit);
          expect(read(log, from).text).toBe(all.slice(from));
        }
        expect(log.totalBytes).toBe(all.length);
        const { gaps } = read(log);
        expect(gaps).toEqual(all.length > limit ? [[0, all.length - limit]] : []);
      }),
    );
  });

  it("wakes who waits: for more, for the end, or when it gives up", async () => {
    const log = new OutputLog(10, "newest");
    const never = new AbortController();
    for (const cause of [() => log.append(Buffer.from("x")), () => log.end(), () => never.abort()]) {
      let woken = false;
      const waiting = outputChange([log], never.signal).then(() => (woken = true));
      await Promise.resolve();
      expect(woken).toBe(false);
      cause();
      await waiting;
    }
    log.append(Buffer.from("late"));
    expect(log.totalBytes).toBe(1);
  });
});
