// The command line and the SDK with processes that live on: shells on a real pty, cut and attached again, output read through a
// restart of the service.
import { join } from "node:path";
import { connect, findConnection } from "@cloche/sdk/node";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import { repositoryRoot, runCommand } from "../fixtures/service.ts";

const { env } = inject("service");
const cli = join(repositoryRoot, "packages/cli/bin/cloche.mjs");
const cloche = connect(findConnection({ ...process.env, ...env }));
let sandbox: Awaited<ReturnType<typeof cloche.create>>;
beforeAll(async () => {
  sandbox = await cloche.create();
});
afterAll(async () => {
  await sandbox.delete();
  await cloche.close();
});

const run = (...words: string[]) =>
  runCommand(process.execPath, [cli, ...words], { env: { ...process.env, ...env }, deadlineMs: 120_000 });

type Step = [wait: string, send: string, afterSeconds?: number];

/** A run of the command line on a pty; `script`: what to wait for, and what to type then. */
async function typed(words: string[], script: Step[]): Promise<{ text: string; code: number }> {
  const pty = join(repositoryRoot, "tests/fixtures/pty-dialogue.py");
  const result = await runCommand("python3", [pty, process.execPath, cli, ...words], {
    env: { ...process.env, ...env, TERM: "xterm" },
    input: JSON.stringify(script),
    deadlineMs: 180_000,
  });
  expect(result.code, result.stderr).toBe(0);
  return JSON.parse(result.stdout) as { text: string; code: number };
}

describe("cloche shell", () => {
  test("has a terminal of this one's size, is left by Ctrl-P Ctrl-Q, attached again, and passes its exit code on", async () => {
    const left = await typed(
      ["shell", sandbox.id],
      [
        ["# ", "x=kept; stty size; tty\r"],
        // As people type them: one by one.
        ["/dev/pts/", "\x10"],
        ["", "\x11", 0.3],
      ],
    );
    expect(left.code, left.text).toBe(0);
    expect(left.text).toContain("30 100");
    const id = /it goes on as (proc-[a-z0-9]+)/.exec(left.text)?.[1] ?? "";
    const back = await typed(["attach", sandbox.id, id], [["30 100", "echo is $x; exit 5\r"]]);
    expect(back.text).toContain("is kept");
    expect(back.code).toBe(5);
  });

  test("runs what draws on the whole screen", async () => {
    const script: Step[] = [
      ["# ", "vi /root/note\r"],
      ["note", "iwritten in vi\x1b:wq\r"],
      ["# ", "cat /root/note; exit\r"],
    ];
    const { text, code } = await typed(["shell", sandbox.id], script);
    expect(code, text).toBe(0);
    expect(await sandbox.files.readText("/root/note")).toBe("written in vi\n");
  });

  test("exec -it is a dialogue, and Ctrl-C goes to the program", async () => {
    const { text, code } = await typed(
      ["exec", "-it", sandbox.id, "--", "python3", "-q"],
      [
        [">>> ", "import time; time.sleep(100)\r"],
        ["(100)", "\x03"],
        ["KeyboardInterrupt", "6*7\r"],
        ["42", "\x04"],
      ],
    );
    expect(code, text).toBe(0);
  });
});

describe("cloche exec --detach", () => {
  test("leaves a process that ps shows, output reads and kill ends", async () => {
    const started = await run(
      "exec",
      "-d",
      "--tag",
      "build",
      sandbox.id,
      "--",
      "sh",
      "-c",
      "echo one; exec sleep 1000",
    );
    const id = started.stdout.trim();
    expect(id).toMatch(/^proc-[a-z0-9]{20}$/);
    expect((await run("ps", sandbox.id)).stdout).toMatch(
      new RegExp(`${id} .* process +running .*\\[build\\] sh -c`),
    );
    expect((await run("output", sandbox.id, id)).stdout).toBe("one\n");
    expect(await run("kill", "-s", "TERM", sandbox.id, id)).toMatchObject({ code: 0 });
    const followed = await run("output", "-f", sandbox.id, id);
    expect(followed).toMatchObject({ code: 143, stdout: "one\n" });
    expect((await run("ps", "-a", sandbox.id)).stdout).toMatch(new RegExp(`${id} .* signal SIGTERM`));
    expect((await run("kill", sandbox.id, id)).code).toBe(0);
    expect(await run("attach", sandbox.id, id)).toMatchObject({ code: 4 });
  });

  test("passes the exit code of a program that is not there", async () => {
    const id = (await run("exec", "-d", sandbox.id, "--", "no-such-program")).stdout.trim();
    expect((await run("output", "-f", sandbox.id, id)).code).toBe(127);
  });
});

describe("cloche forward", () => {
  test("passes TCP on in both directions, half by half, megabytes of it", async () => {
    const echo =
      "import socketserver as s\nclass E(s.BaseRequestHandler):\n def handle(self):\n  d=b''\n  while b:=self.request.recv(65536): d+=b\n  self.request.sendall(d)\ns.ThreadingTCPServer(('127.0.0.1',7777),E).serve_forever()";
    await using server = await sandbox.processes.start(["python3", "-c", echo]);
    expect(server.info.status).toBe("running");
    await sandbox.exec(["sh", "-c", "until grep -q 1E61 /proc/net/tcp; do sleep 0.1; done"], {
      timeout_ms: 60_000,
    });
    const client = `
import json, os, socket, subprocess, sys
f = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
text = b""
while not text.strip().endswith(b"]"): text += f.stdout.readline()
port = json.loads(text)[0]["local_port"]
data = os.urandom(3000000)
c = socket.create_connection(("127.0.0.1", port)); c.sendall(data); c.shutdown(socket.SHUT_WR)
back = b""
while piece := c.recv(65536): back += piece
print("same" if back == data else f"{len(back)} bytes")
f.terminate()
print(f.wait())
`;
    const words = ["-c", client, process.execPath, cli, "--json", "forward", sandbox.id, "7777:0"];
    const result = await runCommand("python3", words, {
      env: { ...process.env, ...env },
      deadlineMs: 120_000,
    });
    expect(result.stdout, result.stderr).toBe("same\n0\n");
  });

  test("says which port nobody listens on, and which words are wrong", async () => {
    await expect(sandbox.connectPort(7778)).rejects.toThrow(/port 7778 .* nothing listens/);
    expect(await run("forward", sandbox.id, "8080:")).toMatchObject({ code: 2 });
  });
});

describe("the SDK", () => {
  test("reads a process to its end while its connection is lost, not a byte lost or twice", async () => {
    const lines = 400;
    const counting = await sandbox.processes.start([
      "sh",
      "-c",
      `i=0; while [ $i -lt ${lines} ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 3`,
    ]);
    let text = "";
    let suspended = false;
    for await (const event of counting) {
      if (event.type === "stdout") text += Buffer.from(event.data).toString();
      if (event.type === "exit") expect(event.process).toMatchObject({ exit_code: 3, ended_by: "exit" });
      if (!suspended && text.length > 100) {
        suspended = true;
        await sandbox.suspend();
        await sandbox.waitFor("SANDBOX_STATE_SUSPENDED");
        await sandbox.resume();
        await sandbox.waitFor("SANDBOX_STATE_RUNNING");
      }
    }
    expect(text).toBe(Array.from({ length: lines }, (_, n) => `${n}\n`).join(""));
  });

  test("attaches, writes more than the network holds, and is told the end", async () => {
    const bytes = 3_000_000;
    await using process = await sandbox.processes.start(["wc", "-c"], { stdin: "open" });
    const attachment = await process.attach();
    await attachment.write(new Uint8Array(bytes).fill(97));
    attachment.endInput();
    let text = "";
    for await (const event of attachment) {
      if (event.type === "stdout") text += Buffer.from(event.data).toString();
      if (event.type === "exit") expect(event.process.exit_code).toBe(0);
    }
    expect(text).toBe(`${bytes}\n`);
  });

  test("waits, signals, resizes and forgets", async () => {
    const shell = await sandbox.processes.terminal(["sh"], { cols: 90, rows: 20 });
    expect(shell.info.tty).toEqual({ cols: 90, rows: 20 });
    expect((await shell.resize({ cols: 70, rows: 10 })).tty).toEqual({ cols: 70, rows: 10 });
    await shell.write("stty size; exit 4\n");
    expect(await shell.wait({ timeout_secs: 60 })).toMatchObject({ exit_code: 4, status: "exited" });
    expect(Buffer.from(await shell.output()).toString()).toContain("10 70");
    await expect(shell.signal("SIGTERM")).rejects.toMatchObject({ status: 409 });
    expect(
      (await sandbox.processes.list({ status: "exited" })).map(({ process_id }) => process_id),
    ).toContain(shell.id);
    await shell.delete();
    await expect(sandbox.processes.get(shell.id)).rejects.toMatchObject({ code: "not_found" });
  });
});
