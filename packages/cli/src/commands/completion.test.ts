import { execFileSync } from "node:child_process";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { failure, FakeService, otherId } from "../testing/fake-service.ts";

const service = new FakeService();
service.sandboxes.push(service.sandbox(otherId, "two words"));

/** The candidates for the last word. */
const candidates = async (line: string): Promise<string[]> => {
  const { code, stdout, stderr } = await service.run(["__complete", ...line.split(" ")]);
  expect([code, stderr]).toEqual([0, ""]);
  return stdout
    .split("\n")
    .filter(Boolean)
    .map((one) => one.split("\t")[0] ?? "");
};

test("commands, their groups, options, choices and sandboxes are completed", async () => {
  expect(await candidates("")).toEqual(
    expect.arrayContaining(["create", "exec", "service", "completion", "help"]),
  );
  expect(await candidates("ex")).toEqual(["exec"]);
  expect(await candidates("service st")).toEqual(["start", "stop"]);
  expect(await candidates("--json service st")).toEqual(["start", "stop"]);
  expect(await candidates("create --on-t")).toEqual(["--on-timeout"]);
  expect(await candidates("create --on-timeout ")).toEqual(["delete", "suspend"]);
  expect(await candidates("create --name ")).toEqual([]);
  expect(await candidates("exec ")).toEqual(["demo", otherId]);
  expect(await candidates("exec -u root d")).toEqual(["demo"]);
  expect(await candidates("rm demo ")).toEqual(["demo", otherId]);
  expect(await candidates("exec demo -- l")).toEqual([]);
  expect(await candidates("completion ")).toEqual(["bash", "zsh", "fish"]);
  expect(await candidates("nonsense ")).toEqual([]);
});

test("a service that is away gives no candidates and no error", async () => {
  const away = new FakeService();
  away.answers.ListSandboxes = () => failure(503, "unavailable", "away");
  expect(await away.run(["__complete", "exec", ""])).toMatchObject({ code: 0, stdout: "", stderr: "" });
});

test("the script for bash asks for what is typed, and a shell that is not known is told", async () => {
  expect(await service.run(["completion", "tcsh"])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("bash, zsh or fish") as string,
  });
  const { stdout } = await service.run(["completion", "bash"]);
  const folder = mkdtempSync(join(tmpdir(), "cloche-completion-"));
  try {
    const cloche = join(folder, "cloche");
    writeFileSync(cloche, '#!/bin/sh\nshift\nprintf "<%s>" "$@"; printf "\\ttold\\n"; echo second\n');
    chmodSync(cloche, 0o755);
    const line = `${stdout}\nCOMP_WORDS=(cloche exec "" x); COMP_CWORD=2; _cloche; printf '%s\\n' "\${COMPREPLY[@]}"; complete -p cloche`;
    const shown = execFileSync("bash", ["--norc", "-c", line], {
      encoding: "utf8",
      env: { PATH: `${folder}:/usr/bin:/bin` },
    });
    expect(shown).toBe("<exec><>\nsecond\ncomplete -o default -F _cloche cloche\n");
  } finally {
    rmSync(folder, { recursive: true });
  }
});
