import { constants } from "node:os";
import { describe, expect, it } from "vitest";
import { SpawnError, type SpawnStage } from "../spawner/index.ts";
import { notExecuted } from "./failures.ts";

const { errno } = constants;
const request = { cmd: ["tool", "x"], dir: "/somewhere", user: "bob" };
const turn = (stage: SpawnStage, number: number, text = "") =>
  notExecuted(new SpawnError(stage, number, text), request);

describe("notExecuted", () => {
  it.each([
    ["exec", errno.ENOENT, 127],
    ["exec", errno.ENOTDIR, 127],
    ["exec", errno.EACCES, 126],
    ["exec", errno.ENOEXEC, 126],
    ["exec", errno.ELOOP, 126],
  ] as const)("answers %s errno %i with code %i", (stage, number, exitCode) => {
    expect(turn(stage, number)).toMatchObject({ exitCode, message: expect.stringMatching(/^tool: .*\n$/) });
  });

  it.each([
    ["exec", errno.E2BIG, "", "invalid_argument", "cmd"],
    ["request", errno.E2BIG, "arguments", "invalid_argument", "cmd"],
    ["cwd", errno.ENOENT, "", "invalid_argument", "dir: /somewhere does not exist"],
    ["cwd", errno.ENOTDIR, "", "invalid_argument", "dir: /somewhere is not a directory"],
    ["cwd", errno.EACCES, "", "invalid_argument", "dir"],
    ["user", errno.ENOENT, "user", "invalid_argument", 'user: there is no such user in the sandbox: "bob"'],
    ["user", errno.ENOENT, "group", "invalid_argument", "there is no such group"],
    ["user", errno.EPERM, "", "internal", "could not be started"],
    ["exec", errno.ENOMEM, "", "resource_exhausted", "another process"],
    ["fork", errno.EAGAIN, "", "resource_exhausted", "more memory"],
    ["pty", errno.EMFILE, "", "resource_exhausted", "another process now: too many files are open"],
    ["fork", errno.EIO, "", "internal", "could not be started"],
    ["lost", 0, "", "unavailable", "restarted"],
  ] as const)("throws for %s errno %i", (stage, number, text, code, message) => {
    expect(() => turn(stage, number, text)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(message) }),
    );
  });

  it.each([
    ["user", "no_such_user"],
    ["group", "no_such_group"],
  ])("says by a reason that there is no such %s", (text, reason) => {
    expect(() => turn("user", errno.ENOENT, text)).toThrow(expect.objectContaining({ reason }));
  });
});
