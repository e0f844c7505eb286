// OpenSSH's own programs with a sandbox, the same on both runtimes: shells, copies, repositories and forwards, and what is left
// of them afterwards.
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { type Client, eventually } from "../fixtures/client.ts";
import { type CommandResult, repositoryRoot, runCommand } from "../fixtures/service.ts";

const cli = join(repositoryRoot, "packages/cli/bin/cloche.mjs");
const host = "Lived-in.cloche";

/** What one's own folder of ssh holds, and when it was last written. */
function ownFolder(): string[] {
  const folder = join(homedir(), ".ssh");
  try {
    return readdirSync(folder).map((name) => `${name} ${statSync(join(folder, name)).mtimeMs}`);
  } catch {
    return [];
  }
}
const leftovers = (): string[] => readdirSync(tmpdir()).filter((name) => name.startsWith("cloche-ssh-"));

/** The tests, for whoever names the service they run against. `bytes`: of a file that is copied. */
// oxlint-disable-next-line max-lines-per-function -- a list of tests, a few lines each
export function sshAsLived(client: Client, bytes: number): void {
  const { env: serviceEnv } = inject("service");
  const folder = mkdtempSync("/var/tmp/cloche-ssh-test-");
  const env: NodeJS.ProcessEnv = { ...process.env, ...serviceEnv, XDG_CONFIG_HOME: join(folder, "config") };
  const configFile = join(folder, "ssh config");
  let sandbox: TestSandbox;
  let own: string[];

  const run = (program: string, ...words: string[]): Promise<CommandResult> =>
    runCommand(program, words, { env, deadlineMs: 300_000 });
  const cloche = (...words: string[]): Promise<CommandResult> => run(process.execPath, cli, ...words);
  const ssh = (...words: string[]): Promise<CommandResult> => run("ssh", "-F", configFile, ...words);
  const done = async (running: Promise<CommandResult>): Promise<string> => {
    const { code, stdout, stderr } = await running;
    expect(code, stdout + stderr).toBe(0);
    return stdout;
  };
  const servers = (where: TestSandbox): Promise<string> =>
    client.shell(where, "pgrep -x sshd || true; pgrep -f '^/usr/bin/perl' || true");
  const nobodyServes = async (where: TestSandbox = sandbox): Promise<void> =>
    expect(
      await eventually(
        () => servers(where),
        (left) => left === "",
        60_000,
      ),
    ).toBe("");
  const begin = (program: string, ...words: string[]): ChildProcess => {
    const child = spawn(program, words, { env, stdio: ["pipe", "pipe", "inherit"] });
    onTestFinished(() => void child.kill("SIGKILL"));
    return child;
  };

  beforeAll(async () => {
    own = ownFolder();
    sandbox = await client.create({ name: "Lived-in", env: { GREETING: 'say "hi" \\o/ # %h' } });
    writeFileSync(configFile, await done(cloche("ssh-config", sandbox.id)), { mode: 0o600 });
  });
  afterAll(async () => {
    await client.session.discard(sandbox.id);
    rmSync(folder, { recursive: true, force: true });
  });

  test("no server runs before the first session, and the image has no host keys", async () => {
    expect(await servers(sandbox)).toBe("");
    expect(await client.shell(sandbox, "ls /etc/ssh/ssh_host_* 2> /dev/null | wc -l")).toBe("0\n");
  });

  describe("ssh by a host entry", () => {
    test("runs commands as root with what an exec finds in its environment, and passes the exit code on", async () => {
      const line = 'id -un; pwd; echo "$GREETING"; echo "$LANG $PATH $HOME"; echo oops >&2; exit 9';
      const { code, stdout, stderr } = await ssh(host, line);
      expect(stdout, stderr).toBe(
        'root\n/root\nsay "hi" \\o/ # %h\nC.UTF-8 /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /root\n',
      );
      expect(stderr).toBe("oops\n");
      expect(code).toBe(9);
      expect(await done(ssh(sandbox.id, "echo", "by", "id"))).toBe("by id\n");
    });

    test("is another user's who asks for it, and sudo needs no password", async () => {
      expect(await done(ssh("-l", "user", host, "id -un; pwd; sudo -n id -un"))).toBe(
        "user\n/home/user\nroot\n",
      );
      const unknown = await ssh("-l", "nosuch", host, "true");
      expect(unknown.code).toBe(255);
      expect(unknown.stderr).toContain("Permission denied (publickey)");
    });

    test("passes any bytes both ways", async () => {
      const file = join(folder, "bytes");
      writeFileSync(file, randomBytes(bytes));
      const line = `ssh -F '${configFile}' ${host} cat < ${file} | cmp - ${file} && echo same`;
      expect(await done(run("sh", "-c", line))).toBe("same\n");
    });

    test("leaves running what was left in the background, and no server", async () => {
      await done(ssh(host, "nohup sleep 5152 > /dev/null 2>&1 < /dev/null &"));
      await nobodyServes();
      const ended = await eventually(
        () => client.exec(sandbox, ["pkill", "-fx", "sleep 5152"]),
        ({ ok }) => ok,
      );
      expect(ended.ok).toBe(true);
    });
  });

  test("scp, sftp and rsync copy files as they are", async () => {
    const [up, down] = [join(folder, "up"), join(folder, "down")];
    const file = join(up, "sub", "a file");
    await done(run("mkdir", "-p", join(up, "sub"), down));
    writeFileSync(file, randomBytes(bytes));
    const same = async (path: string): Promise<void> => void (await done(run("cmp", file, path)));
    const scp = (...words: string[]) => done(run("scp", "-q", "-F", configFile, ...words));
    await scp("-r", up, `${host}:/srv/scp`);
    await scp(`${host}:/srv/scp/sub/a file`, join(down, "scp"));
    await same(join(down, "scp"));

    const batch = join(folder, "batch");
    writeFileSync(batch, `put "${file}" /srv/sftp\nchmod 640 /srv/sftp\nget /srv/sftp ${down}/sftp\n`);
    await done(run("sftp", "-q", "-F", configFile, "-b", batch, host));
    await same(join(down, "sftp"));
    expect(await client.shell(sandbox, "stat -c %a /srv/sftp")).toBe("640\n");

    const rsync = (...words: string[]) => done(run("rsync", "-ai", "-e", `ssh -F '${configFile}'`, ...words));
    expect(await rsync(`${up}/`, `${host}:/srv/rsync`)).toContain("sub/a file");
    expect(await rsync(`${up}/`, `${host}:/srv/rsync`)).toBe("");
    await rsync(`${host}:/srv/rsync/`, `${down}/rsync`);
    await same(join(down, "rsync", "sub", "a file"));
    const ours = `${process.execPath} ${cli} ssh`;
    await done(run("rsync", "-a", "-e", ours, `${sandbox.id}:/srv/rsync/`, `${down}/cloche`));
    await same(join(down, "cloche", "sub", "a file"));
    await nobodyServes();
  });

  test("git clones, commits and pushes", async () => {
    const clone = join(folder, "clone");
    await client.shell(sandbox, "git init -q --bare -b main /srv/repo.git");
    const git = (over: string, ...words: string[]) =>
      done(runCommand("git", words, { env: { ...env, GIT_SSH_COMMAND: over }, deadlineMs: 300_000 }));
    const plain = `ssh -F '${configFile}'`;
    await git(plain, "clone", "-q", `${host}:/srv/repo.git`, clone);
    writeFileSync(join(clone, "note"), "pushed\n");
    const by = ["-C", clone, "-c", "user.name=a", "-c", "user.email=a@b"];
    await git(plain, ...by, "add", "note");
    await git(plain, ...by, "commit", "-qm", "first");
    await git(plain, ...by, "push", "-q", "origin", "HEAD:main");
    expect(await client.shell(sandbox, "git -C /srv/repo.git show main:note")).toBe("pushed\n");
    const again = join(folder, "again");
    await git(`${process.execPath} ${cli} ssh`, "clone", "-q", `${sandbox.id}:/srv/repo.git`, again);
    expect(readFileSync(join(again, "note"), "utf8")).toBe("pushed\n");
  });

  test("forwards ports from here (-L) and whatever a SOCKS client asks for (-D)", async () => {
    await client.shell(
      sandbox,
      "mkdir -p /srv/www && cd /srv/www && echo forwarded > page && (python3 -m http.server 7001 --bind 127.0.0.1 > /dev/null 2>&1 &)",
    );
    const [local, socks] = [34_117, 34_118];
    const words = ["-N", "-L", `${local}:127.0.0.1:7001`, "-D", String(socks)];
    begin("ssh", "-F", configFile, ...words, "-o", "ExitOnForwardFailure=yes", host);
    const fetched = (...more: string[]) =>
      eventually(
        () => run("curl", "-sS", "-m", "20", ...more),
        ({ stdout }) => stdout === "forwarded\n",
        90_000,
      );
    expect((await fetched(`http://127.0.0.1:${local}/page`)).stdout).toBe("forwarded\n");
    const bySocks = ["--socks5-hostname", `127.0.0.1:${socks}`, "http://127.0.0.1:7001/page"];
    expect((await fetched(...bySocks)).stdout).toBe("forwarded\n");
  });

  describe("the keys", () => {
    test("are the only ones: another client's is refused, and another server's is no question but an end", async () => {
      const other = join(folder, "other");
      await done(run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other));
      const entry = readFileSync(configFile, "utf8");
      const altered = (name: string, value: string): string => {
        const file = join(folder, `config-${name}`);
        expect(entry).toMatch(new RegExp(`^ {2}${name} `, "m"));
        writeFileSync(file, entry.replaceAll(new RegExp(`^ {2}${name} .*$`, "gm"), `  ${name} ${value}`));
        return file;
      };
      const stranger = await run("ssh", "-F", altered("IdentityFile", other), host, "true");
      expect(stranger.code).toBe(255);
      expect(stranger.stderr).toContain("Permission denied (publickey)");
      const known = join(folder, "known");
      writeFileSync(known, `cloche ${readFileSync(`${other}.pub`, "utf8")}`);
      const before = readFileSync(known, "utf8");
      const unsure = await run("ssh", "-F", altered("UserKnownHostsFile", known), host, "true");
      expect(unsure.code).toBe(255);
      expect(unsure.stderr).toContain("Host key verification failed");
      expect(readFileSync(known, "utf8")).toBe(before);
      await nobodyServes();
    });

    test("lie in no file and no command line of the sandbox while a session runs", async () => {
      const session = begin("ssh", "-F", configFile, host, "echo ready; cat");
      await new Promise<void>((resolve) => session.stdout?.once("data", () => resolve()));
      const found = await client.shell(
        sandbox,
        "grep -rl 'OPENSSH PRIVATE' /run /tmp /root /etc /var 2> /dev/null; cat /proc/[0-9]*/cmdline | grep -ac 'BEGIN [O]PENSSH' || true",
      );
      expect(found).toBe("0\n");
    });
  });

  describe("a server", () => {
    test("ends with a client that is killed", async () => {
      const session = begin("ssh", "-F", configFile, host, "echo ready; cat");
      await new Promise<void>((resolve) => session.stdout?.once("data", () => resolve()));
      expect(await servers(sandbox)).not.toBe("");
      session.kill("SIGKILL");
      await nobodyServes();
    });

    test("ends in a fork, whose client is the source's, and goes on in the source", async () => {
      const session = begin("ssh", "-F", configFile, host, "echo ready; cat");
      let heard = "";
      session.stdout?.on("data", (data: Buffer) => (heard += data.toString()));
      await eventually(
        () => heard,
        (text) => text.includes("ready"),
        60_000,
      );
      const made = await client.gateway<{ sandbox: TestSandbox; data_plane_token: string }>("ForkSandbox", {
        source_sandbox_id: sandbox.id,
      });
      client.session.adopt(made.sandbox.id);
      onTestFinished(() => client.session.discard(made.sandbox.id));
      await eventually(
        () => client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id: made.sandbox.id }),
        (seen) => seen.sandbox.state === "SANDBOX_STATE_RUNNING",
        240_000,
      );
      const { sandbox: now } = await client.gateway<{ sandbox: TestSandbox }>("GetSandbox", {
        id: made.sandbox.id,
      });
      await nobodyServes({ ...now, token: made.data_plane_token });
      session.stdin?.write("still here\n");
      await eventually(
        () => heard,
        (text) => text.includes("still here"),
        60_000,
      );
      expect(heard).toContain("still here");
    });
  });

  describe("cloche ssh", () => {
    test("is ssh with keys of its own, which end with it", async () => {
      const before = leftovers();
      const line = 'echo "$(id -un) $SSH_CONNECTION" | cut -d" " -f1; exit 7';
      expect(await cloche("ssh", sandbox.id, line)).toMatchObject({ code: 7, stdout: "root\n" });
      expect(await done(cloche("ssh", `user@${sandbox.id}`, "--", "id", "-un"))).toBe("user\n");
      expect(await done(cloche("ssh", "-l", "user", sandbox.id, "id", "-un"))).toBe("user\n");
      expect(leftovers()).toEqual(before);
    });

    test("is a shell on a terminal of this one's size", async () => {
      const pty = join(repositoryRoot, "tests/fixtures/pty-dialogue.py");
      const script = [
        ["# ", "stty size; tty\r"],
        ["/dev/pts/", "exit 3\r"],
      ];
      const result = await runCommand("python3", [pty, process.execPath, cli, "ssh", sandbox.id], {
        env: { ...env, TERM: "xterm" },
        input: JSON.stringify(script),
        deadlineMs: 180_000,
      });
      const { text, code } = JSON.parse(result.stdout) as { text: string; code: number };
      expect(text).toContain("30 100");
      expect(code, text).toBe(3);
    });

    test("says what is wrong: no such sandbox, no server in it", async () => {
      expect(await cloche("ssh", "no-such-box")).toMatchObject({
        code: 4,
        stderr: expect.stringContaining("no sandbox named"),
      });
      await client.shell(sandbox, "mv /usr/sbin/sshd /usr/sbin/sshd.away");
      const without = await cloche("ssh", sandbox.id, "true");
      await client.shell(sandbox, "mv /usr/sbin/sshd.away /usr/sbin/sshd");
      expect(without.code).toBe(255);
      expect(without.stderr).toContain("install openssh-server");
    });
  });

  test("a session wakes a sandbox that is suspended, with auto_resume", async () => {
    await done(cloche("update", sandbox.id, "--auto-resume"));
    await done(cloche("suspend", sandbox.id));
    expect(await done(ssh(host, "echo awake"))).toBe("awake\n");
  });

  test("nothing of all this is in one's own folder of ssh", () => expect(ownFolder()).toEqual(own));
}
