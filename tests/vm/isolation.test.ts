// The attacks of tests/e2e/isolation.test.ts on virtual machines, without a measure of time: what is emulated takes what it takes.
import { createServer } from "node:http";
import { networkInterfaces } from "node:os";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";
import { sandboxOf } from "./vm-client.ts";

const { target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
let neighbour: TestSandbox;
// A server on every address of this machine: reachable for the host, never for a sandbox.
const bait = createServer((_, response) => response.end("bait"));
let baitPort = 0;
beforeAll(async () => {
  [sandbox, neighbour] = [
    await client.create({ name: "attacker" }),
    await client.create({ name: "neighbour" }),
  ];
  await new Promise<void>((resolve) => bait.listen(0, "0.0.0.0", resolve));
  baitPort = (bait.address() as { port: number }).port;
});
afterAll(() => {
  bait.close();
});

describe("the network", () => {
  /** Which of the addresses answer. All at once: each may wait for an answer that never comes. */
  const reached = (urls: readonly string[]): Promise<string> => {
    const line = urls.map((url) => `(curl -sk -m 5 -o /dev/null ${url} && echo reached ${url}) &`).join(" ");
    return client.shell(sandbox, `${line} wait; echo done`);
  };

  test("reaches neither the host, nor metadata and private addresses", async () => {
    const addresses = Object.values(networkInterfaces())
      .flatMap((list) => list ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => address);
    expect(await (await fetch(`http://127.0.0.1:${baitPort}/`)).text()).toBe("bait");
    const gateway = (await client.shell(sandbox, "ip route show default | cut -d' ' -f3")).trim();
    const urls = [...new Set([...addresses, gateway])].map((address) => `http://${address}:${baitPort}/`);
    for (const port of [22, target.edgePort, Number(new URL(target.gatewayUrl).port)])
      urls.push(`http://${gateway}:${port}/`);
    for (const address of ["169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1"])
      urls.push(`http://${address}/`);
    expect(await reached(urls)).toBe("done\n");
  });

  test("does not reach its neighbour", async () => {
    const listening = "cd /tmp && (python3 -m http.server 8000 > /dev/null 2>&1 &)";
    await client.shell(
      neighbour,
      `${listening}; until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.2; done`,
    );
    const addresses =
      (await client.shell(neighbour, "ip -4 -o addr show eth0")).match(/\d+\.\d+\.\d+\.\d+/g) ?? [];
    expect(addresses).not.toEqual([]);
    // Inside, all machines have one address; a neighbour's answer under it would be the neighbour's.
    expect(await reached(addresses.map((address) => `http://${address}:8000/`))).toBe("done\n");
  });
});

describe("the machine", () => {
  test("shows none of the host's and the agent's files, processes and secrets", async () => {
    expect(await client.shell(sandbox, "cat /etc/os-release")).toContain("Debian");
    expect(await client.shell(sandbox, "ls /work /var/lib/cloche /mnt/disk 2>/dev/null || true")).toBe("");
    expect(await client.shell(sandbox, "ps -eo args=")).not.toMatch(/agent|vitest|qemu|packages\/service/);
    const words =
      "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ciE 'secret|bearer|cloche' || true";
    expect((await client.shell(sandbox, words)).trim()).toBe("0");
    const asNobody = await client.exec(sandbox, ["sh", "-c", "cat /etc/shadow; ls /root"], {
      user: "nobody",
    });
    expect(asNobody.ok).toBe(false);
  });

  test("survives its own rm -rf; its files can still be read and the others go on", async () => {
    const victim = await client.create({ name: "victim" });
    await client.exec(victim, ["sh", "-c", "rm -rf /usr /bin /lib /lib64 /etc 2>/dev/null"]);
    expect((await client.call(victim, "GET", "/v1/files/list?path=/")).status).toBe(200);
    expect(await client.exec(victim, ["/no-shell-any-more"])).toMatchObject({ exit_code: 127 });
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    await client.session.discard(victim.id);
  });

  test("survives a fork bomb, and so do its neighbours", async () => {
    const bomb = client.exec(neighbour, ["sh", "-c", "b() { b | b & }; b; sleep 5"], { timeout_ms: 5_000 });
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    await bomb.catch(() => undefined);
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    expect((await client.exec(neighbour, ["echo", "fine"])).stdout).toBe("fine\n");
    expect((await sandboxOf(client, neighbour.id)).state).toBe("SANDBOX_STATE_RUNNING");
    // What the timeout could not catch goes with the machine: the others need the processor.
    await client.session.discard(neighbour.id);
  });

  test("cannot write more than its disk, and goes on with what it has", async () => {
    const small = await client.create({ name: "small", disk_mb: 1_024 });
    const result = await client.exec(small, ["sh", "-c", "head -c 3000M /dev/zero > /root/big; sync"]);
    expect(result.stderr).toContain("No space left");
    const write = await client.call(small, "POST", "/v1/files?path=/root/x", {
      body: Buffer.alloc(1_000_000),
    });
    expect([200, 507]).toContain(write.status);
    expect(await client.shell(small, "rm /root/big && echo ok > /root/y && cat /root/y")).toBe("ok\n");
    await client.session.discard(small.id);
  });
});
