import { describe, expect, it } from "vitest";
import { CommandError, run } from "./run.ts";

describe("run", () => {
  it("captures both streams, hands over the input, and sets the C locale", async () => {
    const result = await run(["sh", "-c", "cat; echo $LC_ALL $MORE >&2"], {
      input: "in",
      env: { MORE: "more" },
    });
    expect(result).toEqual({ stdout: "in", stderr: "C more\n" });
  });

  it("says exit code and the end of stderr", async () => {
    const failure = await run(["sh", "-c", "echo out; echo why >&2; exit 3"]).catch(
      (error: unknown) => error,
    );
    expect(failure).toBeInstanceOf(CommandError);
    expect(failure).toMatchObject({
      exitCode: 3,
      stderr: "why\n",
      message: expect.stringMatching(/exit code 3: why$/),
    });
  });

  it("says when a program is missing", async () => {
    await expect(run(["cloche-no-such-program"])).rejects.toMatchObject({ exitCode: 127 });
  });

  it("kills what runs past its deadline", async () => {
    await expect(run(["sleep", "600"], { deadlineMs: 50 })).rejects.toThrow(
      "not finished after 50 ms, killed",
    );
  });

  it("reports lines as they come", async () => {
    const lines: string[] = [];
    await run(["printf", "a\\nb\\r  c \\n"], { onLine: (line) => lines.push(line) });
    expect(lines).toEqual(["a", "b", "c"]);
  });
});
