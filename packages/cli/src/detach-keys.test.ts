import { expect, test } from "vitest";
import { DetachKeys } from "./detach-keys.ts";

/** Types the pieces; answers what is sent, with `!` where it detaches. */
function typed(...pieces: string[]): string {
  const keys = new DetachKeys();
  let sent = "";
  for (const piece of pieces) {
    const { send, detached } = keys.feed(Buffer.from(piece));
    sent += `${send.toString()}|`;
    if (detached) return `${sent}!`;
  }
  return sent + keys.end().toString();
}

test("the sequence is found in one piece and key by key; a single Ctrl-P comes with the next key or the end", () => {
  expect(typed("ls\x10\x11")).toBe("ls|!");
  expect(typed("ls", "\x10", "\x11")).toBe("ls|||!");
  expect(typed("a\x10", "\x11b")).toBe("a||!");
  expect(typed("\x10", "x", "\x11")).toBe("|\x10x|\x11|");
  expect(typed("\x10", "\x10", "\x11")).toBe("|\x10||!");
  expect(typed("\x10")).toBe("|\x10");
});
