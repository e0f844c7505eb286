// What people do on any Debian machine, and what the gVisor of 2024 could not: each is tried in a sandbox, and what keeps
// running is tried again in its fork and after suspend and resume.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const { runtime } = inject("service");
const debs = ["screen", "tmux", "libevent-core-2.1-7", "libutempter0", "attr"];
const MIB = 1024 * 1024;
let box: TestSandbox;

/** Of the machine's own archive, as `apt-get download` verifies them. */
function download(into: string): void {
  const apt = (...words: string[]): void =>
    void execFileSync("apt-get", ["-q", "-o", "APT::Sandbox::User=root", ...words], {
      cwd: into,
      stdio: "pipe",
    });
  try {
    apt("download", ...debs);
  } catch {
    apt("update");
    apt("download", ...debs);
  }
}

beforeAll(async () => {
  box = await client.create();
  const folder = mkdtempSync("/var/tmp/cloche-debs-");
  try {
    download(folder);
    for (const name of readdirSync(folder)) {
      const body = readFileSync(join(folder, name));
      const answer = await client.call(box, "POST", `/v1/files?path=/root/debs/${encodeURIComponent(name)}`, {
        body,
      });
      expect(answer.status).toBe(200);
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  await client.shell(box, "dpkg -i /root/debs/*.deb");
});
afterAll(() => client.session.discard(box.id));

/** Goes to that state and stays there. */
async function into(sandbox: TestSandbox, method: string, state: string): Promise<void> {
  await client.gateway(method, { id: sandbox.id });
  const seen = await eventually(
    async () =>
      (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: sandbox.id })).sandbox.state,
    (one) => one === state,
    120_000,
  );
  expect(seen).toBe(state);
}

const background = (line: string): Promise<string> => client.shell(box, `${line} > /dev/null 2>&1 &`);

/** In a fork, and in the source after suspend and resume, `goesOn` holds. */
async function survivesTravel(goesOn: (sandbox: TestSandbox) => Promise<void>): Promise<void> {
  await goesOn(box);
  const forked = await client.gateway<{ sandbox: TestSandbox; data_plane_token: string }>("ForkSandbox", {
    source_sandbox_id: box.id,
  });
  const clone = { ...forked.sandbox, token: forked.data_plane_token };
  onTestFinished(() => client.session.discard(clone.id));
  await goesOn(clone);
  await goesOn(box);
  await into(box, "SuspendSandbox", "SANDBOX_STATE_SUSPENDED");
  await into(box, "ResumeSandbox", "SANDBOX_STATE_RUNNING");
  await goesOn(box);
}

/** The number in that file grows. */
async function counts(sandbox: TestSandbox, file: string): Promise<void> {
  const count = async (): Promise<number> => Number(await client.shell(sandbox, `cat ${file}`));
  const before = await eventually(
    () => count().catch(() => 0),
    (seen) => seen > 0,
  );
  expect(await eventually(count, (seen) => seen > before + 3)).toBeGreaterThan(before + 3);
}

test("ls -l shows links without an error", async () => {
  const { stdout, stderr, exit_code } = await client.exec(box, ["ls", "-l", "/bin", "/etc/alternatives"]);
  expect([stderr, exit_code]).toEqual(["", 0]);
  expect(stdout).toContain("->");
});

describe("becoming another user", () => {
  test("root needs no password", async () => {
    expect(await client.shell(box, "su - daemon -s /bin/sh -c id")).toContain("uid=1(daemon)");
  });

  test("a user needs the right one", async () => {
    await client.shell(box, "echo root:rosebud | chpasswd");
    const become = (password: string) =>
      client.exec(box, ["su", "root", "-c", "id -u"], { user: "daemon", stdin: `${password}\n` });
    expect(await become("rosebud")).toMatchObject({ stdout: "0\n", exit_code: 0 });
    expect(await become("wrong")).toMatchObject({ stdout: "", exit_code: 1 });
  });
});

test("extended attributes are kept, by a copy too", async () => {
  await client.shell(box, "cd /root && touch one && setfattr -n user.colour -v green one && cp -a one two");
  expect(await client.shell(box, "getfattr --only-values -n user.colour /root/two")).toBe("green");
});

const counting = (file: string): string =>
  `n=0; while :; do n=$((n+1)); echo $n > ${file}.new; mv ${file}.new ${file}; sleep 0.05; done`;

test("tmux runs a program without a terminal", async () => {
  await client.exec(box, ["tmux", "new-session", "-d", "-s", "work", counting("/root/tmux")]);
  await survivesTravel(async (sandbox) => {
    await counts(sandbox, "/root/tmux");
    expect(await client.shell(sandbox, "tmux ls")).toContain("work: 1 windows");
  });
});

// gVisor says end of file to who reads a terminal before its other end was opened, which screen does (docs/gvisor-limits.md).
test(`screen ${runtime === "gvisor" ? "does not yet run" : "runs"} a program`, async () => {
  await client.exec(box, ["screen", "-dmS", "work", "sh", "-c", counting("/root/screen")]);
  const runs = async (): Promise<boolean> => (await client.exec(box, ["cat", "/root/screen"])).ok;
  if (runtime !== "gvisor") expect(await eventually(runs, Boolean)).toBe(true);
  else expect((await client.exec(box, ["screen", "-ls"])).stdout).toContain("No Sockets found");
});

test("a program that forks and leaves its session freezes nothing", async () => {
  const daemon = [
    "import os, time",
    "if os.fork() == 0:",
    "    os.setsid()",
    "    if os.fork() == 0:",
    "        for n in range(1, 100000):",
    "            open('/root/daemon.new', 'w').write(str(n))",
    "            os.rename('/root/daemon.new', '/root/daemon')",
    "            time.sleep(0.05)",
    "    os._exit(0)",
    "os.wait()",
  ].join("\n");
  await client.exec(box, ["python3", "-c", daemon]);
  await survivesTravel((sandbox) => counts(sandbox, "/root/daemon"));
});

test("a library that a running program maps is replaced by dpkg", async () => {
  const program = [
    "import ctypes, os, time",
    "library = ctypes.CDLL('libutempter.so.0')",
    "for n in range(1, 100000):",
    "    open('/root/mapped.new', 'w').write(str(n))",
    "    os.rename('/root/mapped.new', '/root/mapped')",
    "    time.sleep(0.05)",
  ].join("\n");
  await background(`python3 -c "${program}"`);
  await counts(box, "/root/mapped");
  await client.shell(box, "dpkg -i /root/debs/libutempter0*.deb");
  expect(await client.shell(box, "cat /proc/*/maps | grep -c 'libutempter.*deleted'")).not.toBe("0\n");
  await survivesTravel((sandbox) => counts(sandbox, "/root/mapped"));
});

describe("files that are deleted while a program holds them open", () => {
  /** Holds what `make` opened as `f`, deleted, and counts by what it reads of it. */
  const holder = (make: string): string =>
    [
      "import os, socket, time",
      make,
      "for n in range(1, 100000):",
      "    open('/root/held.new', 'w').write(str(n))",
      "    os.rename('/root/held.new', '/root/held')",
      "    time.sleep(0.05)",
    ].join("\n");
  const hold = async (make: string): Promise<void> => {
    onTestFinished(async () => void (await client.exec(box, ["pkill", "-f", "held.new"])));
    await client.shell(box, "rm -f /root/held");
    await background(`python3 -c "${holder(make)}"`);
    await counts(box, "/root/held");
  };
  const forked = async (): Promise<string> => {
    const answer = await client.gateway("ForkSandbox", { source_sandbox_id: box.id }).then(
      () => "forked",
      (error: Error) => error.message,
    );
    return answer;
  };

  test("are in a fork and after resume, with a directory", async () => {
    await hold(
      `f = open('/root/gone', 'wb+'); f.write(os.urandom(${4 * MIB})); f.flush(); os.unlink('/root/gone'); os.mkdir('/root/dir'); d = os.open('/root/dir', 0); os.rmdir('/root/dir')`,
    );
    const sum = (sandbox: TestSandbox) =>
      client.shell(sandbox, "sha256sum < /proc/$(pgrep -f '^python3.*held.new')/fd/3");
    const before = await sum(box);
    await survivesTravel(async (sandbox) => {
      await counts(sandbox, "/root/held");
      expect(await sum(sandbox)).toBe(before);
    });
  });

  test.runIf(runtime === "gvisor").each([
    ["more than 16 MiB", `f = open('/root/gone', 'wb+'); f.truncate(${17 * MIB}); os.unlink('/root/gone')`],
    ["a FIFO", "os.mkfifo('/root/gone'); f = os.open('/root/gone', os.O_RDWR); os.unlink('/root/gone')"],
  ])("are refused before anything is touched where the memory cannot have them: %s", async (_what, make) => {
    await hold(make);
    const refusal = await forked();
    expect(refusal).toContain("failed_precondition");
    expect(refusal).toContain("/root/gone");
    await counts(box, "/root/held");
    await client.gateway("SuspendSandbox", { id: box.id });
    const { sandbox } = await eventually(
      () =>
        client.gateway<{ sandbox: { state: string; error_message: string } }>("GetSandbox", { id: box.id }),
      (seen) => seen.sandbox.error_message !== "",
    );
    expect(sandbox).toMatchObject({ state: "SANDBOX_STATE_RUNNING" });
    expect(sandbox.error_message).toContain("/root/gone");
    await counts(box, "/root/held");
  });

  test.runIf(runtime === "gvisor")("a socket whose name is gone harms nothing", async () => {
    await hold(
      "f = socket.socket(socket.AF_UNIX); f.bind('/root/gone'); f.listen(); os.unlink('/root/gone')",
    );
    const answer = await forked();
    expect(answer === "forked" || answer.includes("failed_precondition")).toBe(true);
    await counts(box, "/root/held");
  });
});
