// What is particular to a machine with a kernel of its own: its limits, its walls, its disk, and gVisor machines beside it.
import { createServer } from "node:http";
import { networkInterfaces } from "node:os";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";
import { make, sandboxOf } from "./vm-client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
// A server on every address of this machine: reachable for the host, never for a sandbox.
const bait = createServer((_, response) => response.end("bait"));
let baitPort = 0;
beforeAll(async () => {
  sandbox = await client.create({ name: "guest" });
  await new Promise<void>((resolve) => bait.listen(0, "0.0.0.0", resolve));
  baitPort = (bait.address() as { port: number }).port;
});
afterAll(() => {
  bait.close();
});

test("has a kernel of its own, and its record says so", async () => {
  expect((await sandboxOf(client, sandbox.id)).runtime).toBe("qemu");
  expect(await client.shell(sandbox, "uname -v")).toContain("Debian");
  expect(await client.shell(sandbox, "grep -c virtio /proc/interrupts || true")).not.toBe("0\n");
});

describe("limits inside", () => {
  test("a program that takes all memory is ended by the guest's kernel; the agent and its neighbours live on", async () => {
    await client.shell(sandbox, "sleep 1000 > /dev/null 2>&1 & echo $! > /root/sleeper");
    const hog = await client.exec(sandbox, ["python3", "-c", "b=[]\nwhile True: b.append(bytearray(8<<20))"]);
    expect(hog).toMatchObject({ exit_code: 137, ok: false, timed_out: false });
    expect(await client.shell(sandbox, "kill -0 $(cat /root/sleeper) && echo lives")).toBe("lives\n");
    expect((await sandboxOf(client, sandbox.id)).state).toBe("SANDBOX_STATE_RUNNING");
  });

  test("users' processes have limits of processes, memory and processor; the kernel may end them, never the agent", async () => {
    const group =
      "mkdir -p /tmp/groups && mount -t cgroup2 none /tmp/groups && cd /tmp/groups/cloche-guests-*";
    const limits = (await client.shell(sandbox, `${group} && cat pids.max cpu.weight memory.max`)).split(
      "\n",
    );
    const total = Number(await client.shell(sandbox, "awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024;
    expect(Number(limits[0])).toBeGreaterThan(100);
    expect(limits[1]).toBe("50");
    expect(Number(limits[2])).toBeGreaterThan(total / 2);
    expect(Number(limits[2])).toBeLessThan(total);
    expect(await client.shell(sandbox, "cat /proc/self/oom_score_adj /proc/1/oom_score_adj")).toBe(
      "0\n-1000\n",
    );
  });
});

describe("walls", () => {
  test("reaches neither the host, nor metadata and private addresses", async () => {
    const addresses = Object.values(networkInterfaces())
      .flatMap((list) => list ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => address);
    expect(await (await fetch(`http://127.0.0.1:${baitPort}/`)).text()).toBe("bait");
    const gateway = (await client.shell(sandbox, "ip route show default | cut -d' ' -f3")).trim();
    const urls = [...new Set([...addresses, gateway])].map((address) => `http://${address}:${baitPort}/`);
    urls.push("http://169.254.169.254/", "http://10.0.0.1/", "http://192.168.0.1/");
    // All at once: each may wait for an answer that never comes.
    const line = urls.map((url) => `(curl -sk -m 5 -o /dev/null ${url} && echo reached ${url}) &`).join(" ");
    expect(await client.shell(sandbox, `${line} wait; echo done`)).toBe("done\n");
  });

  test("does not reach its neighbour", async () => {
    const neighbour = await client.create({ name: "neighbour" });
    const listening = "cd /tmp && (python3 -m http.server 8000 > /dev/null 2>&1 &)";
    await client.shell(
      neighbour,
      `${listening}; until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.2; done`,
    );
    const addresses =
      (await client.shell(neighbour, "ip -4 -o addr show eth0")).match(/\d+\.\d+\.\d+\.\d+/g) ?? [];
    // Inside, all machines have one address; a neighbour's answer under it would be the neighbour's.
    for (const address of addresses) {
      const result = await client.exec(sandbox, ["curl", "-s", "-m", "5", `http://${address}:8000/`]);
      expect(result.exit_code, address).not.toBe(0);
    }
  });

  test("shows none of the host's and the agent's files, processes and secrets", async () => {
    expect(await client.shell(sandbox, "ls /var/lib/cloche /mnt/disk 2>/dev/null || true")).toBe("");
    expect(await client.shell(sandbox, "ps -eo args=")).not.toMatch(/agent|vitest|qemu|packages\/service/);
    const words =
      "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ciE 'secret|bearer|cloche' || true";
    expect((await client.shell(sandbox, words)).trim()).toBe("0");
  });
});

describe("checkpoints and the two runtimes", () => {
  const checkpointOf = async (source: TestSandbox): Promise<string> => {
    const post = async (path: string, json: object): Promise<Record<string, unknown>> =>
      JSON.parse((await client.call(source, "POST", path, { json })).body.toString());
    const { checkpoint_id } = await post("/v1/checkpoint", {});
    expect(await post("/v1/checkpoint/wait", { checkpoint_id, timeout_secs: 120 })).toMatchObject({
      ok: true,
    });
    return checkpoint_id as string;
  };

  test("a larger disk from a machine's checkpoint is made larger by the guest itself", async () => {
    const small = await client.create({ disk_mb: 1_024 });
    await client.shell(small, "echo kept > /root/kept");
    const checkpoint_id = await checkpointOf(small);
    const large = await make(client, "CreateSandbox", { checkpoint_id, disk_mb: 3_072 });
    expect(await client.shell(large, "cat /root/kept")).toBe("kept\n");
    const bytes = (of: TestSandbox) => client.shell(of, "df -B1 --output=size / | tail -1");
    expect(Number(await bytes(small))).toBeLessThan(1_024 * 1024 * 1024);
    expect(Number(await bytes(large))).toBeGreaterThan(2_700 * 1024 * 1024);
    await client.shell(large, "fallocate -l 1500M /root/large && rm /root/large");
  });

  test("gVisor machines run beside it; what a machine wrote is never mounted for them", async () => {
    await client.shell(sandbox, "echo from qemu > /root/origin");
    const checkpoint_id = await checkpointOf(sandbox);
    await expect(client.gateway("CreateSandbox", { checkpoint_id, runtime: "gvisor" })).rejects.toThrow(
      "qemu",
    );
    const light = await make(client, "CreateSandbox", { runtime: "gvisor" });
    expect((await sandboxOf(client, light.id)).runtime).toBe("gvisor");
    await client.shell(light, "echo from gvisor > /root/origin");
    const heavy = await make(client, "CreateSandbox", {
      checkpoint_id: await checkpointOf(light),
      runtime: "qemu",
    });
    expect((await sandboxOf(client, heavy.id)).runtime).toBe("qemu");
    expect(await client.shell(heavy, "cat /root/origin")).toBe("from gvisor\n");
    const copy = await make(client, "ForkSandbox", { source_sandbox_id: light.id });
    expect((await sandboxOf(client, copy.id)).runtime).toBe("gvisor");
  });
});
