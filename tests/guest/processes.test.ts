// Processes and terminals over the real spawner: what the double of the unit tests has not.
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { token } from "../../packages/agent/src/testing/agent-fixture.ts";
import { AttachClient } from "../../packages/agent/src/testing/attach-client.ts";
import { type GuestFixture, isGvisor, isRoot, startGuestAgent, until } from "./guest-fixture.ts";

describe.runIf(isRoot)("processes in a guest", () => {
  let fixture: GuestFixture;
  beforeAll(async () => {
    fixture = await startGuestAgent();
  });
  afterAll(() => fixture.close());

  const start = async (body: Record<string, unknown>): Promise<string> => {
    const { status, json, text } = await fixture.call("POST", "/v1/processes", { body });
    expect(status, text).toBe(201);
    return json["process_id"] as string;
  };
  const on = async (id: string, call: string, body?: unknown) =>
    (await fixture.call("POST", `/v1/processes/${id}/${call}`, { body })).json;
  const info = async (id: string) => (await fixture.call("GET", `/v1/processes/${id}`)).json;
  const output = async (id: string) => (await fixture.call("GET", `/v1/processes/${id}/output`)).text;
  const attach = (id: string) =>
    AttachClient.to(fixture.port, {
      path: `/v1/processes/${id}/attach`,
      headers: { authorization: `Bearer ${token()}` },
    });

  it("merges standard error into standard output in the order of the writes", async () => {
    const id = await start({
      cmd: ["sh", "-c", "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"],
      merge_output: true,
    });
    expect(await on(id, "wait")).toMatchObject({ exit_code: 0, stderr_bytes: 0 });
    expect(await output(id)).toBe("o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n");
  });

  it("tells the pid of an exec to who asks", async () => {
    const exec = fixture.exec({ cmd: ["sh", "-c", "echo $$; sleep 1"] });
    await sleep(300);
    const { json } = await fixture.call("GET", "/v1/processes?status=running");
    const [listed] = json["processes"] as { pid: number; kind: string }[];
    expect(listed).toMatchObject({ kind: "exec" });
    expect((await exec).stdout).toBe(`${listed?.pid}\n`);
  });

  it("signals the process group, and not what left it", async () => {
    const id = await start({
      cmd: ["sh", "-c", "setsid sleep 3101 & sleep 3102 & trap 'echo got; exit 5' USR1; echo ready; wait"],
    });
    await until("it is ready", async () => (await output(id)) === "ready\n");
    await on(id, "signal", { signal: "USR1" });
    expect(await on(id, "wait")).toMatchObject({ exit_code: 5 });
    expect(
      (await fixture.exec({ cmd: ["pgrep", "-fx", "sleep 310[12]"] })).stdout.trim().split("\n"),
    ).toHaveLength(1);
    await fixture.call("DELETE", `/v1/processes/${id}`);
    expect((await fixture.exec({ cmd: ["pgrep", "-fx", "sleep 310[12]"] })).stdout).toBe("");
  });

  it("gives a terminal with job control, whose signals go to the foreground", async () => {
    const id = await start({
      cmd: ["bash", "--norc", "--noprofile", "-i"],
      env: { PS1: "ready> " },
      tty: { cols: 90, rows: 20 },
    });
    const terminal = await attach(id);
    await terminal.until("a prompt", () => terminal.text(1).includes("ready> "));
    terminal.send(0, "stty -a | grep -o '.iutf8'; tty; echo $TERM\n");
    await terminal.until("the name", () => /\/dev\/pts\/\d+\r\nxterm-256color\r\n/.test(terminal.text(1)));
    if (!isGvisor) expect(terminal.text(1)).toMatch(/[^.] iutf8\r\n/);
    expect(terminal.text(1)).not.toContain("no job control");
    terminal.resize(132, 43);
    terminal.send(0, "stty size\n");
    await terminal.until("the new size", () => /43 132\r\n/.test(terminal.text(1)));
    expect((await info(id))["tty"]).toEqual({ cols: 132, rows: 43 });
    terminal.send(0, "sleep 3111; echo code $?\n");
    await until("it sleeps", async () => (await fixture.exec({ cmd: ["pgrep", "-fx", "sleep 3111"] })).ok);
    await on(id, "signal", { signal: "SIGTERM" });
    await terminal.until("the foreground's end", () => terminal.text(1).includes("code 143"));
    terminal.send(0, "sleep 3112\n");
    await until("it sleeps", async () => (await fixture.exec({ cmd: ["pgrep", "-fx", "sleep 3112"] })).ok);
    await on(id, "signal", { signal: "SIGINT" });
    await until(
      "it is interrupted",
      async () => !(await fixture.exec({ cmd: ["pgrep", "-fx", "sleep 3112"] })).ok,
    );
    terminal.send(0, "\nexit 6\n");
    await terminal.closed;
    expect(terminal.status.at(-1)).toMatchObject({ exit_code: 6, ended_by: "exit" });
  });

  it.each(["root", "ann", "77"])("lets %s open its terminal and its pipes again", async (user) => {
    const script = "echo out > /dev/stdout; echo err > /dev/stderr; : < /dev/stdin";
    for (const shape of [{ tty: {} }, { merge_output: true, stdin: "open" }, { merge_output: true }]) {
      const id = await start({ cmd: ["sh", "-c", script], user, ...shape });
      expect(await on(id, "wait")).toMatchObject({ exit_code: 0 });
      expect((await output(id)).replaceAll("\r", "")).toBe("out\nerr\n");
    }
  });

  it("gives a terminal a TERM that the tree knows", async () => {
    const types: [string, string][] = [
      ["xterm-ghostty", "xterm-256color"],
      ["vt100", "vt100"],
      ["dumb", "dumb"],
      ["", ""],
      ["../../etc/passwd", "../../etc/passwd"],
    ];
    for (const [asked, given] of types) {
      const id = await start({ cmd: ["sh", "-c", "echo $TERM"], env: { TERM: asked }, tty: {} });
      await on(id, "wait");
      expect(await output(id)).toBe(`${given}\r\n`);
    }
    // A program's own variable is its own where there is no terminal.
    expect((await fixture.exec({ cmd: ["sh", "-c", "echo $TERM"], env: { TERM: "odd" } })).stdout).toBe(
      "odd\n",
    );
  });

  it("loses no byte of a terminal, however much is written last", async () => {
    for (const bytes of [10, 100_000, 3_000_000]) {
      const id = await start({
        cmd: ["sh", "-c", `stty -opost; head -c ${bytes} /dev/zero | tr '\\0' x; printf END`],
        tty: {},
        output_limit_bytes: 4_000_000,
      });
      expect(await on(id, "wait")).toMatchObject({ exit_code: 0, stdout_bytes: bytes + 3 });
      expect((await output(id)).endsWith("xEND")).toBe(true);
    }
  });

  it("does not wait for what a terminal's program left behind it", async () => {
    const id = await start({
      cmd: ["bash", "-c", "trap '' HUP; (while :; do echo noise; sleep 0.01; done) & sleep 0.2; echo last"],
      tty: {},
    });
    const begunMs = Date.now();
    expect(await on(id, "wait")).toMatchObject({ status: "exited", exit_code: 0 });
    expect(Date.now() - begunMs).toBeLessThan(5_000);
    expect(await output(id)).toContain("last");
    await fixture.call("DELETE", `/v1/processes/${id}`);
  });

  it("ends a terminal's input by the end-of-file character", async () => {
    const id = await start({ cmd: ["cat"], tty: {} });
    await fixture.call("POST", `/v1/processes/${id}/stdin`, { raw: "line\n" });
    await until("the echo and the line", async () => (await output(id)) === "line\r\nline\r\n");
    expect((await fixture.call("DELETE", `/v1/processes/${id}/stdin`)).json).toEqual({ ok: true });
    expect(await on(id, "wait")).toMatchObject({ exit_code: 0 });
  });

  it("says that memory, a timeout or the end of all processes ended it", async () => {
    const timed = await start({ cmd: ["sleep", "100"], timeout_ms: 200 });
    expect(await on(timed, "wait")).toMatchObject({ ended_by: "timeout", timed_out: true, exit_code: 137 });
    const id = await start({ cmd: ["sleep", "100"] });
    await on(id, "signal", { signal: 9 });
    expect(await on(id, "wait")).toMatchObject({ ended_by: "signal", signal: "SIGKILL", exit_code: 137 });
  });

  it("takes no more memory for output that never ends than for what is on its way", async () => {
    const cmd = ["head", "-c", "30000000", "/dev/zero"];
    const ids = await Promise.all(Array.from({ length: 8 }, () => start({ cmd, output_limit_bytes: 4 })));
    for (const id of ids) {
      expect(await on(id, "wait", { timeout_secs: 100 })).toMatchObject({ stdout_bytes: 30_000_000 });
    }
    const { stdout } = await fixture.exec({ cmd: ["grep", "VmHWM", "/proc/1/status"] });
    expect(Number(/\d+/.exec(stdout)?.[0])).toBeLessThan(16_000);
  });

  it("runs many at once, and all of them are found", async () => {
    const ids = await Promise.all(
      Array.from({ length: 60 }, (_, n) => start({ cmd: ["sh", "-c", `echo ${n}; exit ${n}`] })),
    );
    const ends = await Promise.all(ids.map((id) => on(id, "wait")));
    expect(ends.map((end) => end["exit_code"])).toEqual(ids.map((_, n) => n));
    for (const [n, id] of ids.entries()) expect(await output(id)).toBe(`${n}\n`);
  });
});
