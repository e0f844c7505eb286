// Services in OCI containers, in sandboxes of either runtime: an image that the sandbox has on its own disk, so that no registry is asked.
import { execFileSync } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { type Client, eventually } from "../fixtures/client.ts";
import { addBusybox, ImageWorkshop, installTools } from "../oci/registry-fixture.ts";
import { fork } from "../vm/vm-client.ts";

const PORT = 8080;
/** One core that is emulated needs its time to unpack an image. */
const START_MS = 240_000;
const SERVER = `mkdir -p /var/www; hostname > /var/www/name; echo $$ > /var/www/pid; exec httpd -f -p 127.0.0.1:${PORT} -h /var/www`;

export function containersAsLived(client: Client): void {
  let workshop: ImageWorkshop;
  /** The image, as an archive. */
  let layout: Buffer;
  let sandbox: TestSandbox;

  const call = async (box: TestSandbox, method: string, path: string, json?: unknown): Promise<unknown> => {
    const answer = await client.call(box, method, path, { json, deadlineMs: START_MS });
    expect(answer.status, answer.body.toString()).toBe(200);
    return JSON.parse(answer.body.toString());
  };
  const inside = async (box: TestSandbox, line: string): Promise<{ stdout: string; exit_code: number }> =>
    (await call(box, "POST", "/v1/services/web/exec", { cmd: ["sh", "-c", line] })) as {
      stdout: string;
      exit_code: number;
    };
  const served = (box: TestSandbox, file: string): Promise<string> =>
    client.shell(
      box,
      `python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:${PORT}/${file}").read().decode(), end="")'`,
    );

  beforeAll(async () => {
    installTools();
    workshop = new ImageWorkshop();
    await workshop.build("web", {
      steps: [addBusybox],
      config: ["--config.entrypoint", "/bin/sh", "--config.entrypoint", "-c", "--config.cmd", SERVER],
    });
    layout = execFileSync("tar", ["-C", workshop.layout, "-c", "."], { maxBuffer: 64 << 20 });
    sandbox = await client.create();
    const unpacked = await client.call(sandbox, "POST", "/v1/files/archive?path=/root/web", { body: layout });
    expect(unpacked.status, unpacked.body.toString()).toBe(200);
    await call(sandbox, "PUT", "/v1/services/web", {
      cmd: "",
      container: true,
      image: "oci:/root/web:web",
      health_port: PORT,
      restart: "always",
    });
  });
  afterAll(async () => {
    await client.session.discard(sandbox.id);
    workshop.close();
  });

  test("an image runs as its config says, and the sandbox reaches its port", async () => {
    const started = await call(sandbox, "POST", "/v1/services/web/start", {});
    expect(started).toMatchObject({ status: "running", container: true, error: "" });
    expect(await served(sandbox, "name")).not.toBe("");
    expect((await inside(sandbox, "id -u; ls /root; ps -o comm | grep -c httpd")).stdout).toMatch(
      /^0\n[1-9]\n$/,
    );
    const localhost = "grep ^::1 /etc/hosts; ip -6 addr show lo | grep -c 'inet6 ::1/'";
    expect((await inside(sandbox, localhost)).stdout).toMatch(/^::1\s+localhost .*\n1\n$/);
    // Its own root and processes: none of the sandbox's.
    expect((await inside(sandbox, "ls /root/web /usr/bin/python3")).exit_code).not.toBe(0);
  });

  test("it has owners, users and mounts of its own, and no more of the machine than the sandbox", async () => {
    const own = "touch /var/x && chown 1234:1234 /var/x && stat -c %u:%g /var/x && su keeper -c id";
    expect((await inside(sandbox, own)).stdout).toMatch(/^1234:1234\nuid=1234\(keeper\)/);
    expect(
      (await inside(sandbox, "mkdir -p /m && mount -t tmpfs none /m && echo y > /m/y && cat /m/y")).stdout,
    ).toBe("y\n");
    const held =
      "echo x > /proc/sys/kernel/core_pattern; cat /proc/sys/kernel/core_pattern; ls /mnt/disk /agent /cloche";
    const { stdout, exit_code } = await inside(sandbox, held);
    expect(stdout).not.toMatch(/^x$/m);
    expect(exit_code).not.toBe(0);
  });

  // Where it is emulated, a bomb takes minutes to reach the limit of processes.
  if (inject("service").runtime === "gvisor")
    test("a fork bomb in it dies, and all others live", async () => {
      const pid = await served(sandbox, "pid");
      const began = performance.now();
      expect((await inside(sandbox, "f(){ f|f& };f; exec sleep 100")).exit_code).toBe(137);
      expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
      expect((await inside(sandbox, "echo fine; ps | wc -l")).stdout).toMatch(/^fine\n\d\n$/);
      expect(performance.now() - began).toBeLessThan(15_000);
      expect(await served(sandbox, "pid")).toBe(pid);
      const web = await call(sandbox, "GET", "/v1/services/web");
      expect(web).toMatchObject({ status: "running", restarts: 0 });
    });

  // A virtual machine's kernel kills, and tells nobody.
  if (inject("service").runtime === "gvisor")
    test("a program in it that takes all memory dies, though nothing ran before it, and all others live", async () => {
      const small = await client.create({ cpus: 1, memory_mb: 256 });
      onTestFinished(() => client.session.discard(small.id));
      await client.call(small, "POST", "/v1/files/archive?path=/root/web", { body: layout });
      const fill = ["-c", 'exec awk \'BEGIN { for (;;) a[n++] = sprintf("%10000s", "x") }\''];
      const definition = { container: true, image: "oci:/root/web:web", cmd: "/bin/sh", args: fill };
      await call(small, "PUT", "/v1/services/greedy", { ...definition, restart: "never" });
      const ended = (): Promise<{ status: string }> =>
        call(small, "GET", "/v1/services/greedy") as Promise<{ status: string }>;
      for (let round = 0; round < 3; round += 1) {
        // Longer than its memory guard looks around before it sleeps.
        await sleep(2_000);
        await call(small, "POST", "/v1/services/greedy/start", {});
        const seen = await eventually(ended, ({ status }) => status !== "running");
        expect(seen).toMatchObject({ exit_code: 137, error: expect.stringContaining("memory is used up") });
      }
      const { sandbox: after } = await client.gateway<{ sandbox: unknown }>("GetSandbox", { id: small.id });
      expect(after).toMatchObject({ state: "SANDBOX_STATE_RUNNING", error_message: "" });
    });

  test("it goes on in a fork, and through its own death", async () => {
    const pid = await served(sandbox, "pid");
    const copy = await fork(client, sandbox);
    expect(await served(copy, "pid")).toBe(pid);
    expect((await inside(copy, "echo of the copy")).stdout).toBe("of the copy\n");
    await inside(copy, "kill -9 -1");
    const again = await eventually(
      () => call(copy, "GET", "/v1/services/web") as Promise<{ status: string; restarts: number }>,
      ({ status, restarts }) => status === "running" && restarts > 0,
      START_MS,
    );
    expect(again).toMatchObject({ status: "running" });
    expect(await served(copy, "name")).not.toBe("");
    expect(await served(sandbox, "pid")).toBe(pid);
  });
}
