// What a sandbox must not reach or do: the host, its neighbours, the service itself.
import { createServer } from "node:http";
import { networkInterfaces } from "node:os";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";

const { target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
let neighbour: TestSandbox;
// A server on every address of this machine: reachable for the host, never for a sandbox.
const bait = createServer((_, response) => response.end("bait"));
let baitPort = 0;
beforeAll(async () => {
  [sandbox, neighbour] = await Promise.all([client.create(), client.create()]);
  await new Promise<void>((resolve) => bait.listen(0, "0.0.0.0", resolve));
  baitPort = (bait.address() as { port: number }).port;
});
afterAll(() => {
  bait.close();
});

const curl = async (url: string): Promise<{ code: number; text: string }> => {
  const result = await client.exec(sandbox, ["curl", "-sk", "-m", "3", url]);
  return { code: result.exit_code, text: result.stdout };
};

describe("the network of a sandbox", () => {
  test("does not reach the host on any of its addresses", async () => {
    const addresses = Object.values(networkInterfaces())
      .flatMap((list) => list ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => address);
    expect(addresses).toContain("127.0.0.1");
    expect(await (await fetch(`http://127.0.0.1:${baitPort}/`)).text()).toBe("bait");
    for (const address of addresses)
      expect(await curl(`http://${address}:${baitPort}/`), address).not.toMatchObject({ code: 0 });
    const gateway = await client.shell(sandbox, "ip route show default | cut -d' ' -f3");
    for (const port of [baitPort, 22, target.edgePort, Number(new URL(target.gatewayUrl).port)])
      expect(await curl(`http://${gateway.trim()}:${port}/`)).not.toMatchObject({ code: 0 });
  });

  test("does not reach metadata and private addresses", async () => {
    for (const address of ["169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1"])
      expect(await curl(`http://${address}/`), address).not.toMatchObject({ code: 0 });
  });

  test("does not reach its neighbour", async () => {
    const address = (await client.shell(neighbour, "hostname -I || ip -4 -o addr show eth0")).match(
      /\d+\.\d+\.\d+\.\d+/g,
    );
    await client.shell(neighbour, "cd /tmp && (python3 -m http.server 8000 > /dev/null 2>&1 &) ; sleep 1");
    expect(
      (await client.shell(neighbour, "curl -s -m 3 -o /dev/null http://127.0.0.1:8000/ && echo up")).trim(),
    ).toBe("up");
    for (const one of new Set(address)) {
      if (one.startsWith("127.")) continue;
      expect(await curl(`http://${one}:8000/`), one).not.toMatchObject({ code: 0 });
    }
  });

  test("serves itself on its own loopback", async () => {
    await client.shell(sandbox, "cd /tmp && (python3 -m http.server 8000 > /dev/null 2>&1 &) ; sleep 1");
    expect((await curl("http://127.0.0.1:8000/")).code).toBe(0);
  });
});

describe("the machine of a sandbox", () => {
  test("shows none of the host's files, processes and names", async () => {
    expect(await client.shell(sandbox, "cat /etc/os-release")).toContain("Debian");
    expect(await client.shell(sandbox, "ls /work /var/lib/cloche 2>/dev/null || true")).toBe("");
    const processes = await client.shell(sandbox, "ps -eo args=");
    expect(processes).not.toMatch(/agent|vitest|runsc|packages\/service/);
  });

  test("hides the agent's memory, files and secrets from every user", async () => {
    const line =
      "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ciE 'secret|bearer|cloche' || true";
    expect((await client.shell(sandbox, line)).trim()).toBe("0");
    const asNobody = await client.exec(sandbox, ["sh", "-c", "cat /etc/shadow; ls /root"], {
      user: "nobody",
    });
    expect(asNobody.ok).toBe(false);
  });

  test("survives its own rm -rf and fork bomb, its neighbours too", async () => {
    const victim = await client.create();
    await client.exec(victim, ["sh", "-c", "rm -rf /usr /bin /lib /lib64 /etc 2>/dev/null"]);
    expect((await client.call(victim, "GET", "/v1/files/list?path=/")).status).toBe(200);
    await client.exec(victim, ["/no-shell-any-more"]);
    const bomb = client.exec(neighbour, ["sh", "-c", "b() { b | b & }; b; sleep 5"], { timeout_ms: 5_000 });
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    await bomb.catch(() => undefined);
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    // What of the bomb outlived its exec must not slow down all that follows.
    await client.session.discard(neighbour.id);
  });

  test("cannot write more than its disk", async () => {
    const small = await client.create({ disk_mb: 1024 });
    const result = await client.exec(small, [
      "sh",
      "-c",
      "dd if=/dev/zero of=/root/big bs=1M count=3000; sync",
    ]);
    expect(result.stderr).toContain("No space left");
    const write = await client.call(small, "POST", "/v1/files?path=/root/x", {
      body: Buffer.alloc(1_000_000),
    });
    expect([200, 507]).toContain(write.status);
    await client.exec(small, ["rm", "/root/big"]);
    expect((await client.exec(small, ["sh", "-c", "echo ok > /root/y && cat /root/y"])).stdout).toBe("ok\n");
  });
});
