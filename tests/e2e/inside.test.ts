// What somebody finds in a new sandbox, and finds again after a restore: programs, users, names, what lies on the disk.
import { beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create({ name: "Inside a Box" });
});

const shell = (line: string, where = sandbox): Promise<string> => client.shell(where, line);
const json = (answer: { body: Buffer }): Record<string, unknown> => JSON.parse(answer.body.toString());

async function checkpoint(): Promise<string> {
  const answer = await client.call(sandbox, "POST", "/v1/checkpoint", { json: {} });
  expect(answer.status, answer.body.toString()).toBe(200);
  return json(answer)["checkpoint_id"] as string;
}
async function restore(id: string): Promise<Record<string, unknown>> {
  const answer = await client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id: id } });
  expect(answer.status, answer.body.toString()).toBe(200);
  return json(answer);
}

interface Answer {
  sandbox: { id: string; state: string; domain: string };
  data_plane_token: string;
}
async function fork(source: TestSandbox): Promise<TestSandbox> {
  const made = await client.gateway<Answer>("ForkSandbox", { source_sandbox_id: source.id });
  client.session.adopt(made.sandbox.id);
  onTestFinished(() => client.session.discard(made.sandbox.id));
  const { sandbox: now } = await eventually(
    () => client.gateway<Answer>("GetSandbox", { id: made.sandbox.id }),
    (seen) => seen.sandbox.state !== "SANDBOX_STATE_CREATING",
  );
  expect(now.state).toBe("SANDBOX_STATE_RUNNING");
  return { id: now.id, domain: now.domain, token: made.data_plane_token };
}
async function into(method: string, state: string): Promise<void> {
  await client.gateway(method, { id: sandbox.id });
  const { sandbox: now } = await eventually(
    () => client.gateway<Answer>("GetSandbox", { id: sandbox.id }),
    (seen) => seen.sandbox.state === state,
    60_000,
  );
  expect(now.state).toBe(state);
}

describe("a new sandbox", () => {
  test("has the programs that people expect, in a language that prints UTF-8", async () => {
    const programs = "python python3 pip git curl wget sudo su ping less vi ps top node npm gzip";
    expect(await shell(`for p in ${programs}; do command -v $p > /dev/null || echo no $p; done`)).toBe("");
    expect(await shell("python -c 'import sys; print(sys.version_info[0], \"é\")'; locale charmap")).toBe(
      "3 é\nUTF-8\n",
    );
    expect(await shell("cat /etc/dpkg/dpkg.cfg.d/*")).toContain("force-unsafe-io");
  });

  test("has a user who becomes root, and root becomes anybody", async () => {
    expect(await shell("id user; getent passwd user | cut -d: -f6-")).toBe(
      "uid=1000(user) gid=1000(user) groups=1000(user)\n/home/user:/bin/bash\n",
    );
    expect(await shell("sudo -u user id -un; su user -c 'id -un'; su - user -c 'pwd; sudo id -un'")).toBe(
      "user\nuser\n/home/user\nroot\n",
    );
    const asUser = await client.exec(sandbox, ["sudo", "sh", "-c", "id -u; hostname"], { user: "user" });
    expect(asUser).toMatchObject({ stdout: expect.stringMatching(/^0\n/), stderr: "", exit_code: 0 });
  });

  test("starts a login shell without another program", async () => {
    for (const user of ["root", "user"]) {
      const login = await client.exec(sandbox, ["bash", "-x", "-l", "-c", "true"], { user });
      const words = Array.from(
        login.stderr.matchAll(/^\++ '?([^\s=']+)'?(?: |$)/gm),
        ([, word = ""]) => word,
      );
      expect(words).toContain("export");
      const types = 'for word; do echo "$(type -t "$word") $word"; done';
      const typed = await client.exec(sandbox, ["bash", "-c", types, "bash", ...new Set(words)]);
      expect(typed.stdout.split("\n").filter((line) => !/^(builtin|keyword) |^$/.test(line))).toEqual([]);
    }
  });

  test("answers a ping of its loopback, whoever asks", async () => {
    for (const user of ["root", "user"]) {
      const { stdout, stderr } = await client.exec(sandbox, ["ping", "-c1", "-W5", "127.0.0.1"], { user });
      expect(stdout + stderr, user).toContain("1 received");
    }
  });

  test("means both addresses by localhost, and reaches what listens on either", async () => {
    const server =
      "import asyncio\nasync def main():\n s = await asyncio.start_server(lambda r, w: w.close(), 'localhost', 8123)\n print(sorted(t.getsockname()[0] for t in s.sockets))\nasyncio.run(main())";
    expect(await client.exec(sandbox, ["python", "-c", server])).toMatchObject({
      stdout: "['127.0.0.1', '::1']\n",
      stderr: "",
    });
    const args = ["-m", "http.server", "8124", "--bind", "::1"];
    await client.call(sandbox, "PUT", "/v1/services/six", {
      json: { cmd: "python", args, health_port: 8124 },
    });
    const started = await client.call(sandbox, "POST", "/v1/services/six/start");
    expect(json(started)).toMatchObject({ status: "running" });
    await client.call(sandbox, "DELETE", "/v1/services/six");
  });
});

describe("after a restore", () => {
  test("the sandbox has its own name, which resolves, and the user's own names", async () => {
    const name = await shell("hostname");
    expect(name).toContain("inside-a-box");
    await shell("echo '10.1.2.3 database' >> /etc/hosts");
    await restore(await checkpoint());
    expect(await shell("hostname; cat /etc/hostname")).toBe(name + name);
    expect(await shell("getent hosts $(hostname)")).toMatch(/^127\.0\.1\.1 +inside-a-box/);
    expect(await shell("getent hosts database")).toMatch(/^10\.1\.2\.3 /);
    expect((await client.exec(sandbox, ["sudo", "true"], { user: "user" })).stderr).toBe("");
    const clone = await fork(sandbox);
    expect(await shell("getent hosts $(hostname)", clone)).toMatch(/^127\.0\.1\.1 /);
    expect(await shell("hostname", clone)).not.toBe(name);
    expect(await shell("getent hosts database", clone)).toMatch(/^10\.1\.2\.3 /);
  });

  test("/tmp and /var/tmp are as they were, /run as at a start, and a service says what it is", async () => {
    await shell(
      `mkdir -p /etc/tmpfiles.d && echo 'd /run/package 0750 user user' > /etc/tmpfiles.d/package.conf
       echo kept > /tmp/kept; echo kept > /var/tmp/kept; mkdir -p /run/package; touch /run/memory /run/by-hand`,
    );
    const services = { good: "test -d /run/package", bad: "test -e /run/by-hand" };
    for (const [name, needed] of Object.entries(services)) {
      const definition = { cmd: "sh", args: ["-c", `sleep 0.05; ${needed} && exec sleep 1000000`] };
      await client.call(sandbox, "PUT", `/v1/services/${name}`, { json: definition });
      await client.call(sandbox, "POST", `/v1/services/${name}/start`);
    }
    const id = await checkpoint();
    await shell("rm /tmp/kept /var/tmp/kept");
    expect(await restore(id)).toMatchObject({ started_services: ["good"], failed_services: ["bad"] });
    expect(
      await shell(
        "cat /tmp/kept /var/tmp/kept; stat -c '%A %U' /run/package /run/lock /tmp; ls /run/memory 2>&1 || true",
      ),
    ).toBe(
      "kept\nkept\ndrwxr-x--- user\ndrwxrwxrwt root\ndrwxrwxrwt root\nls: cannot access '/run/memory': No such file or directory\n",
    );
    for (const name of Object.keys(services)) await client.call(sandbox, "DELETE", `/v1/services/${name}`);
  });
});

describe("/tmp", () => {
  test("is as large as the disk", async () => {
    const [tmp, root, memory] = (
      await shell("df -k --output=avail /tmp / | grep -v Avail; grep MemTotal /proc/meminfo | tr -dc 0-9")
    )
      .trim()
      .split(/\s+/)
      .map(Number) as [number, number, number];
    expect(tmp).toBe(root);
    expect(tmp).toBeGreaterThan(memory);
  });

  test("holds sockets and pipes that work on through a fork, a suspend and a resume", async () => {
    const program = `import os, socket, threading
s = socket.socket(socket.AF_UNIX); s.bind('/tmp/listen.sock'); s.listen()
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); d.bind('/tmp/datagram.sock')
os.mkfifo('/tmp/pipe'); f = os.open('/tmp/pipe', os.O_RDWR); os.write(f, b'held')
gone = open('/tmp/gone', 'w+'); gone.write('deleted'); gone.flush(); os.unlink('/tmp/gone')
os.write(1, b'ready')
while True:
    c, _ = s.accept()
    gone.seek(0)
    c.send(f'{d.getsockname()} {gone.read()}'.encode())
    c.close()
`;
    await client.call(sandbox, "POST", "/v1/files?path=/root/holder.py", { body: Buffer.from(program) });
    await shell(
      "setsid python /root/holder.py > /root/holder.out 2>&1 & while ! grep -q ready /root/holder.out; do sleep 0.05; done",
    );
    const ask = `python -c "import socket; s=socket.socket(socket.AF_UNIX); s.connect('/tmp/listen.sock'); print(s.recv(99).decode())"; stat -c %F /tmp/listen.sock /tmp/datagram.sock /tmp/pipe; timeout 5 head -c4 /tmp/pipe`;
    const answer = "/tmp/datagram.sock deleted\nsocket\nsocket\nfifo\nheld";
    expect(await shell(ask, await fork(sandbox))).toBe(answer);
    await into("SuspendSandbox", "SANDBOX_STATE_SUSPENDED");
    await into("ResumeSandbox", "SANDBOX_STATE_RUNNING");
    expect(await shell(ask)).toBe(answer);
  });
});
