import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { type Answering, answered, fakeQemu, type QmpCommand } from "../../testing/fake-qemu.ts";
import { QmpClient, QmpError, QmpTimeout } from "./qmp.ts";

const closers: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close();
});

async function connectTo(answer: Answering): Promise<QmpClient> {
  const dir = await mkdtemp(join(tmpdir(), "qmp-test-"));
  closers.push(() => rm(dir, { recursive: true, force: true }));
  closers.push(await fakeQemu(join(dir, "s"), answer));
  const client = await QmpClient.connect(dir, "s");
  closers.push(() => client.close());
  return client;
}

describe("QmpClient", () => {
  it("gives each command its own answer, whatever their order and however they are cut", async () => {
    const held: QmpCommand[] = [];
    const client = await connectTo((command, socket) => {
      held.push(command);
      if (held.length < 2) return "";
      for (const { id, execute } of held.toReversed()) {
        const text = `{"return": "${execute}", "id": ${id}}\r\n`;
        socket.write(text.slice(0, 9));
        socket.write(text.slice(9));
      }
      return "";
    });
    const answers = await Promise.all([client.execute("stop"), client.execute("cont")]);
    expect(answers).toEqual(["stop", "cont"]);
  });

  it("turns a refusal into an error that names the command", async () => {
    const client = await connectTo(
      ({ id }) => `{"error": {"class": "GenericError", "desc": "no such node"}, "id": ${id}}\n`,
    );
    const failed = client.execute("blockdev-del", { "node-name": "x" });
    await expect(failed).rejects.toThrow(QmpError);
    await expect(failed).rejects.toThrow("blockdev-del: no such node");
  });

  it("delivers events between answers", async () => {
    const client = await connectTo(
      ({ id }) => `{"event": "GUEST_PANICKED", "data": {"action": "pause"}}\n{"return": {}, "id": ${id}}\n`,
    );
    const events: string[] = [];
    client.onEvent(({ event }) => events.push(event));
    await client.execute("query-status");
    expect(events).toEqual(["GUEST_PANICKED"]);
  });

  it("gives up on a QEMU that does not answer", async () => {
    const client = await connectTo(() => "");
    await expect(client.execute("query-status", 20)).rejects.toThrow(QmpTimeout);
  });

  it("fails what is under way and everything after when QEMU ends", async () => {
    const client = await connectTo((_, socket) => {
      socket.destroy();
      return "";
    });
    await expect(client.execute("stop")).rejects.toThrow("QEMU has ended");
    await client.closed;
    await expect(client.execute("cont")).rejects.toThrow("QEMU has ended");
  });

  it("reads a QEMU that sends events without end at a bounded rate, and its answers nevertheless", async () => {
    const line = '{"event": "GUEST_CRASHLOADED"}\n';
    const client = await connectTo((command, socket) => {
      socket.write(answered(command, "first"));
      socket.write(line.repeat(200_000));
      return "";
    });
    let events = 0;
    client.onEvent(() => void (events += 1));
    const beganMs = performance.now();
    expect(await client.execute("query-version")).toBe("first");
    while (performance.now() - beganMs < 300) await new Promise((resolve) => setTimeout(resolve, 20));
    const inOneRead = 65_536 / line.length;
    expect(events).toBeGreaterThan(0);
    expect(events).toBeLessThan((performance.now() - beganMs) * 10 + inOneRead + 10);
  });

  it.each(["", "\n"])("hangs up on a line that is longer than any of QEMU's, ended by %j", async (end) => {
    const nested = `${"[".repeat(65_536)}${"]".repeat(65_536)}`;
    const client = await connectTo(({ id }) => `{"return": ${nested}, "id": ${id}}${end}`);
    await expect(client.execute("stop")).rejects.toThrow("QEMU has ended");
  });

  it("hangs up on a line that does not end", async () => {
    const client = await connectTo(() => "x".repeat(2 * 1024 * 1024));
    await expect(client.execute("stop")).rejects.toThrow("QEMU has ended");
  });

  it("hangs up on what is not its protocol", async () => {
    const client = await connectTo(() => "hello\n");
    await expect(client.execute("stop")).rejects.toThrow("QEMU has ended");
  });
});
