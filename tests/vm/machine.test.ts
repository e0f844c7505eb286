// What is particular to a machine with a kernel of its own: its limits, its disk, and gVisor machines beside it.
import { beforeAll, describe, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";
import { runCommand } from "../fixtures/service.ts";
import { make, sandboxOf } from "./vm-client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create({ name: "guest" });
});

test("has a kernel of its own, and its record says so", async () => {
  expect((await sandboxOf(client, sandbox.id)).runtime).toBe("qemu");
  expect(await client.shell(sandbox, "uname -v")).toContain("Debian");
  expect(await client.shell(sandbox, "grep -c virtio /proc/interrupts || true")).not.toBe("0\n");
});

/** Ten lines of a stranger's, at the address that needs neither DNS nor a CA. */
const tenLines = `
import os, requests
box = requests.Session()
box.headers["Authorization"] = "Bearer " + os.environ["TOKEN"]
at = os.environ["AT"]
ran = box.post(at + "/v1/exec", json={"cmd": ["sh", "-c", "echo $((6*7)); exit 3"]}).json()
body = os.urandom(3_000_000)
made = box.put(at + "/v1/files", params={"path": "/root/by requests"}, data=body).json()
read = box.get(at + "/v1/files", params={"path": "/root/by requests"}).content
print(ran["stdout"].strip(), ran["exit_code"], made["size"], read == body)
`;

test("answers Python's requests at the plain address", async () => {
  const { data_plane_url: address } = await client.gateway<{ data_plane_url: string }>(
    "IssueDataPlaneToken",
    { sandbox_id: sandbox.id },
  );
  const env = { ...process.env, AT: `${address}/sandboxes/${sandbox.id}`, TOKEN: sandbox.token };
  const { stdout, stderr } = await runCommand("python3", ["-c", tenLines], { env });
  expect(stdout, stderr).toBe("42 3 3000000 True\n");
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
      "mkdir -p /tmp/groups && (mountpoint -q /tmp/groups || mount -t cgroup2 none /tmp/groups) && cd /tmp/groups";
    const limits = (await client.shell(sandbox, `${group} && cat pids.max cpu.weight memory.max`)).split(
      "\n",
    );
    // It sees them, and cannot lift them.
    const lift = `${group}; for f in pids.max memory.max; do echo max > $f && echo lifted; done 2>/dev/null; true`;
    expect(await client.shell(sandbox, lift)).toBe("");
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
