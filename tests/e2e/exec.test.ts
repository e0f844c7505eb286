// exec where data cannot say it: clients that vanish, streams, much output, many at once.
import https from "node:https";
import { join } from "node:path";
import { beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const { env, target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
});

/** How many processes of the sandbox have exactly this command line. */
const countOf = async (commandLine: string): Promise<number> =>
  Number(await client.shell(sandbox, `pgrep -fxc '${commandLine}' || true`));

/** An exec whose answer the caller handles. */
function startExec(cmd: string[], headers: Record<string, string> = {}): ReturnType<typeof https.request> {
  const request = https.request({
    host: target.edgeHost,
    port: target.edgePort,
    servername: sandbox.domain.replace(/:\d+$/, ""),
    ca: target.ca,
    method: "POST",
    path: "/v1/exec",
    agent: false,
    headers: { host: sandbox.domain, authorization: `Bearer ${sandbox.token}`, ...headers },
  });
  request.on("error", () => undefined);
  request.end(JSON.stringify({ cmd }));
  return request;
}

test("a command has nothing of the agent's environment, and its language in one file", async () => {
  expect(await client.shell(sandbox, "tr '\\0' '\\n' < /proc/self/environ | grep -c '^LD_' || true")).toBe(
    "0\n",
  );
  expect(await client.shell(sandbox, "locale charmap; localedef --list-archive")).toBe("UTF-8\nC.utf8\n");
});

describe("the command line", () => {
  const cli = join(repositoryRoot, "packages/cli/bin/cloche.mjs");
  const bash = (line: string) =>
    runCommand("bash", ["-o", "pipefail", "-c", line], {
      env: { ...process.env, ...env, CLI: `${process.execPath} ${cli}`, BOX: sandbox.id },
    });

  test("passes every byte on, out and in, whatever the size", async () => {
    const [inside] = (await client.shell(sandbox, "sha256sum /bin/ls")).split(" ");
    expect(await bash("$CLI exec $BOX -- cat /bin/ls | sha256sum")).toMatchObject({
      code: 0,
      stdout: `${inside}  -\n`,
    });
    const three = "head -c 3000000 /dev/urandom > $F; sha256sum < $F; $CLI exec -i $BOX -- sha256sum < $F";
    const { stdout, stderr } = await bash(
      `F=$(mktemp); ${three}; cat $F | $CLI exec -i $BOX sha256sum; rm $F`,
    );
    const sums = stdout.trim().split("\n");
    expect(sums, stderr).toHaveLength(3);
    expect(new Set(sums).size).toBe(1);
  });

  test("runs while its input is open, and ends when the command ends", async () => {
    // Until its reader is gone: a command line that waited for its end would wait as long.
    const open = "(while sleep 0.2; do echo tick || exit; done)";
    expect(await bash(`${open} | $CLI exec -i $BOX -- head -n 2`)).toMatchObject({ stdout: "tick\ntick\n" });
    const killed = await bash(`${open} | $CLI exec -i --timeout 2 $BOX -- sh -c 'cat > /dev/null'`);
    expect(killed).toMatchObject({ code: 137, stderr: "cloche: timed out after 2 s and was killed\n" });
  });
});

describe("a client that goes away", () => {
  test("kills its command's whole tree and nothing else", async () => {
    await client.shell(sandbox, "sleep 9001 > /dev/null 2>&1 &");
    const request = startExec(["sh", "-c", "setsid sleep 9002 & sleep 9003 & sleep 9004"]);
    expect(
      await eventually(
        () => countOf("sleep 900[234]"),
        (count) => count === 3,
      ),
    ).toBe(3);
    request.destroy();
    expect(
      await eventually(
        () => countOf("sleep 900[234]"),
        (count) => count === 0,
      ),
    ).toBe(0);
    expect(await countOf("sleep 9001")).toBe(1);
    await client.shell(sandbox, "pkill -fx 'sleep 9001'");
  });

  test("kills its command while output streams", async () => {
    const request = startExec(["sh", "-c", "while :; do echo tick; sleep 0.05; done; : 9005"], {
      accept: "text/event-stream",
    });
    await new Promise<void>((resolve, reject) => {
      request.on("response", (response) => response.once("data", () => resolve()));
      request.on("error", reject);
    });
    const running = (): Promise<number> =>
      client.shell(sandbox, "pgrep -f '[:] 9005' | wc -l").then((text) => Number(text));
    expect(await running()).toBeGreaterThan(0);
    request.destroy();
    expect(await eventually(running, (count) => count === 0)).toBe(0);
  });

  test("leaves alone what another client runs at the same time", async () => {
    const staying = client.exec(sandbox, ["sh", "-c", "sleep 2; echo stayed"]);
    const leaving = startExec(["sleep", "9006"]);
    await eventually(
      () => countOf("sleep 9006"),
      (count) => count === 1,
    );
    leaving.destroy();
    expect((await staying).stdout).toBe("stayed\n");
    expect(
      await eventually(
        () => countOf("sleep 9006"),
        (count) => count === 0,
      ),
    ).toBe(0);
  });
});

describe("streaming", () => {
  test("brings output as it comes, and the exit last", async () => {
    const request = startExec(["sh", "-c", "echo one; sleep 1; echo two >&2; exit 5"], {
      accept: "text/event-stream",
    });
    const arrivals: { text: string; atMs: number }[] = [];
    await new Promise<void>((resolve, reject) => {
      request.on("error", reject);
      request.on("response", (response) => {
        response.setEncoding("utf8");
        response.on("data", (text: string) => arrivals.push({ text, atMs: performance.now() }));
        response.on("end", resolve);
      });
    });
    const whole = arrivals.map(({ text }) => text).join("");
    expect(whole).toMatch(
      /event: stdout\n[^]*one[^]*event: stderr\n[^]*two[^]*event: exit\n[^]*"exit_code":5/,
    );
    // Not held back until the end: something came before what was written a second later.
    const first = arrivals.find(({ text }) => text.includes("one"));
    const second = arrivals.find(({ text }) => text.includes("two"));
    expect(first).not.toBe(second);
  });
});

describe("much at once", () => {
  test("output of 16 MiB to each stream comes whole and unmixed", async () => {
    const line = "head -c 16777216 /dev/zero | tr '\\0' o; head -c 16777216 /dev/zero | tr '\\0' e >&2";
    const result = await client.exec(sandbox, ["sh", "-c", line]);
    expect(result.stdout.length).toBe(16_777_216);
    expect(/^o+$/.test(result.stdout)).toBe(true);
    expect(/^e+$/.test(result.stderr)).toBe(true);
    expect(result.stdout_truncated ?? false).toBe(false);
  });

  test("stdin of several megabytes reaches the command", async () => {
    const stdin = "0123456789abcdef".repeat(250_000);
    const result = await client.exec(sandbox, ["sh", "-c", "wc -c; true"], { stdin });
    expect(Number(result.stdout)).toBe(4_000_000);
  });

  test("a command that does not read its stdin still ends", async () => {
    const result = await client.exec(sandbox, ["true"], { stdin: "x".repeat(2_000_000) });
    expect(result.exit_code).toBe(0);
  });

  test("forty commands at once each answer for themselves", async () => {
    const results = await Promise.all(
      Array.from({ length: 40 }, (_, index) =>
        client.exec(sandbox, [
          "sh",
          "-c",
          `sleep 0.1; echo out-${index}; echo err-${index} >&2; exit ${index}`,
        ]),
      ),
    );
    for (const [index, result] of results.entries()) {
      expect(result).toMatchObject({ stdout: `out-${index}\n`, stderr: `err-${index}\n`, exit_code: index });
    }
  });

  test("fast commands never lose their output", async () => {
    for (let round = 0; round < 100; round += 1) {
      const { stdout } = await client.exec(sandbox, ["echo", String(round)]);
      expect(stdout).toBe(`${round}\n`);
    }
  });

  test("no zombies and no descriptors are left behind", async () => {
    const zombies = await client.shell(sandbox, "ps -eo stat= | grep -c '^Z' || true");
    expect(Number(zombies)).toBe(0);
  });
});
