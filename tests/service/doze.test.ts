// Sandboxes that doze: frozen while nothing runs in them and nobody asks, and awake before anybody could tell.
import https from "node:https";
import { afterAll, beforeAll, expect, inject, test, type TestContext } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { leaveSleeping } from "../fixtures/background.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { cgroupOf, isFrozen } from "../fixtures/unit-cgroup.ts";

const { runtime } = inject("service");
const onGvisor = test.runIf(runtime === "gvisor");
/** They wait most of their time. */
const besideOthers = onGvisor.concurrent;

let service: TestService;
let client: Client;
beforeAll(async () => {
  if (runtime !== "gvisor") return;
  service = await startService({ env: { CLOCHE_WARM_POOL: "1", CLOCHE_DOZE_SECONDS: "1" } });
  client = new Client(service.target());
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  expect((await service?.destroy()) ?? []).toEqual([]);
});

async function make(
  { onTestFailed, onTestFinished }: TestContext,
  fields: Record<string, unknown> = {},
): Promise<TestSandbox> {
  onTestFailed(() => console.error(service.logTail()));
  const sandbox = await client.create(fields);
  onTestFinished(() => client.session.discard(sandbox.id));
  return sandbox;
}
const frozen = ({ id }: { id: string }): Promise<boolean> => isFrozen(service.home, id);
const dozesOff = async (sandbox: { id: string }): Promise<void> => {
  expect(await eventually(() => frozen(sandbox), Boolean, 120_000)).toBe(true);
};
const stateOf = async ({ id }: { id: string }): Promise<string> =>
  (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id })).sandbox.state;
const comesTo = async (sandbox: { id: string }, state: string): Promise<void> => {
  const seen = await eventually(
    () => stateOf(sandbox),
    (one) => one === state,
    120_000,
  );
  expect(seen).toBe(state);
};
const says = async (sandbox: TestSandbox, word: string): Promise<void> => {
  expect((await client.exec(sandbox, ["echo", word])).stdout).toBe(`${word}\n`);
};
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

besideOthers(
  "an idle sandbox is frozen, is still RUNNING, uses no CPU, and the next request finds it awake",
  async (context) => {
    const sandbox = await make(context);
    await client.call(sandbox, "PUT", "/v1/store/kept", { json: { value: "before" } });
    for (let round = 0; round < 3; round += 1) {
      await dozesOff(sandbox);
      const cgroup = await cgroupOf(service.home, sandbox.id);
      const before = (await cgroup.figures()).cpuMs;
      await pause(2_000);
      // Its stubs are not frozen: without the sentry they have next to nothing to do.
      expect((await cgroup.figures()).cpuMs - before).toBeLessThan(2);
      // To look at it is not to wake it.
      expect(await stateOf(sandbox)).toBe("SANDBOX_STATE_RUNNING");
      expect(await frozen(sandbox)).toBe(true);
      await says(sandbox, `round ${round}`);
      const kept = await client.call(sandbox, "GET", "/v1/store/kept");
      expect(JSON.parse(kept.body.toString())).toMatchObject({ value: "before" });
    }
  },
);

besideOthers(
  "a process, a service, an exec and an open stream keep it awake; without them it dozes",
  async (context) => {
    const server = "python3 -m http.server 8000 --bind 127.0.0.1";
    const [background, serving, executing, streaming, idle] = await Promise.all([
      make(context),
      make(context),
      make(context),
      make(context),
      make(context),
    ]);
    await client.shell(background, leaveSleeping("1000"));
    await client.call(serving, "PUT", "/v1/services/web", {
      json: { cmd: "sh", args: ["-c", `exec ${server}`], health_port: 8000 },
    });
    expect((await client.call(serving, "POST", "/v1/services/web/start")).status).toBe(200);
    const command = client
      .call(executing, "POST", "/v1/exec", { json: { cmd: ["sleep", "1000"] }, deadlineMs: 600_000 })
      .catch(() => undefined);
    // The log of a service that does not run.
    await client.call(streaming, "PUT", "/v1/services/talk", { json: { cmd: "true" } });
    const following = await follow(streaming, "/v1/services/talk/logs?follow=true");
    context.onTestFinished(() => following.destroy());
    const busy = [background, serving, executing, streaming];
    await Promise.all([idle].map(dozesOff));
    // Several times its time, by the same watch.
    for (let look = 0; look < 20; look += 1) {
      expect(await Promise.all(busy.map(frozen))).toEqual([false, false, false, false]);
      await pause(250);
    }
    following.destroy();
    await client.shell(background, "pkill -fx 'sleep 1000'");
    await client.call(serving, "POST", "/v1/services/web/stop");
    await client.shell(executing, "pkill -fx 'sleep 1000'");
    await command;
    await Promise.all(busy.map(dozesOff));
  },
);

besideOthers("metrics neither wake it nor keep it awake, and go on while it dozes", async (context) => {
  const sandbox = await make(context);
  interface Sample {
    at: string;
    cpu_share: number;
    memory_bytes: number;
    processes: number;
  }
  const metricsOf = () =>
    client.gateway<{ now: Sample; history: Sample[] }>("GetSandboxMetrics", { id: sandbox.id });
  // Asked all the time.
  const asked = eventually(
    async () => {
      await metricsOf();
      return await frozen(sandbox);
    },
    Boolean,
    60_000,
  );
  expect(await asked).toBe(true);
  const since = new Date().toISOString();
  // The first of them is of ten seconds that began before it was frozen.
  const [, ...dozing] = await eventually(
    async () => (await metricsOf()).history.filter(({ at }) => at > since),
    (samples) => samples.length >= 3,
    60_000,
  );
  expect(dozing.length).toBeGreaterThanOrEqual(2);
  expect(await frozen(sandbox)).toBe(true);
  expect(dozing.map(({ cpu_share }) => cpu_share)).toEqual(dozing.map(() => 0));
  const { now } = await metricsOf();
  expect(now.memory_bytes).toBe(dozing[0]?.memory_bytes);
  expect(now.memory_bytes).toBeGreaterThan(1_000_000);
  expect(await frozen(sandbox)).toBe(true);
  await says(sandbox, "awake");
});

besideOthers("requests around the moment of the freeze are all answered", async (context) => {
  const sandboxes = await Promise.all([make(context), make(context), make(context)]);
  await Promise.all(
    sandboxes.map(async (sandbox, seed) => {
      for (let round = 0; round < 25; round += 1) {
        // Close to when it is asked whether anything happens, then by chance a little before and after.
        await pause(700 + ((round * 3 + seed) % 25) * 60);
        const token = `${seed}-${round}`;
        if (round % 2 === 0) await says(sandbox, token);
        else {
          // Answered at once, and goes on by itself: that too must not be frozen.
          await client.shell(sandbox, leaveSleeping("1000"));
          await pause(100);
          expect(await frozen(sandbox)).toBe(false);
          await client.shell(sandbox, "pkill -fx 'sleep 1000'");
        }
      }
      await dozesOff(sandbox);
      await says(sandbox, "last");
    }),
  );
});

besideOthers(
  "one that dozes can be checkpointed, restored, forked, suspended, resumed and deleted",
  async (context) => {
    const sandbox = await make(context);
    await client.shell(sandbox, "echo before > /root/note; echo in memory > /dev/shm/note");
    await dozesOff(sandbox);
    const checkpoint = await client.call(sandbox, "POST", "/v1/checkpoint", { json: { name: "asleep" } });
    expect(checkpoint.status, checkpoint.body.toString()).toBe(200);
    await client.shell(sandbox, "echo after > /root/note");
    await dozesOff(sandbox);
    const { checkpoint_id } = JSON.parse(checkpoint.body.toString()) as { checkpoint_id: string };
    const restored = await client.call(sandbox, "POST", "/v1/restore", { json: { checkpoint_id } });
    expect(restored.status, restored.body.toString()).toBe(200);
    expect(await client.shell(sandbox, "cat /root/note")).toBe("before\n");

    await dozesOff(sandbox);
    const { sandbox: clone } = await client.gateway<{ sandbox: { id: string } }>("ForkSandbox", {
      source_sandbox_id: sandbox.id,
    });
    client.session.adopt(clone.id);
    await comesTo(clone, "SANDBOX_STATE_RUNNING");
    await dozesOff(clone);
    await client.gateway("DeleteSandbox", { id: clone.id });

    await dozesOff(sandbox);
    await client.gateway("SuspendSandbox", { id: sandbox.id });
    await comesTo(sandbox, "SANDBOX_STATE_SUSPENDED");
    await client.gateway("ResumeSandbox", { id: sandbox.id });
    await comesTo(sandbox, "SANDBOX_STATE_RUNNING");
    await dozesOff(sandbox);
    expect(await client.shell(sandbox, "cat /root/note")).toBe("before\n");
    await dozesOff(sandbox);
    await client.gateway("DeleteSandbox", { id: sandbox.id });
  },
);

besideOthers(
  "one that dozes is suspended when it has been idle for its time, and woken by its data plane",
  async (context) => {
    const sandbox = await make(context, { auto_resume: true });
    await dozesOff(sandbox);
    await client.gateway("UpdateSandbox", { id: sandbox.id, idle_suspend_seconds: 4 });
    await comesTo(sandbox, "SANDBOX_STATE_SUSPENDED");
    await says(sandbox, "woken");
  },
);

/** A tar of one file of that many bytes. */
function tarOf(bytes: number): Buffer {
  const header = Buffer.alloc(512);
  header.write("big");
  header.write(["0000644", "0000000", "0000000", ""].join("\0"), 100);
  header.write([bytes.toString(8).padStart(11, "0"), "00000000000", ""].join("\0"), 124);
  header.fill(" ", 148, 156);
  header.write("0", 156);
  header.write("ustar", 257);
  header.write("00", 263);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return Buffer.concat([header, Buffer.alloc(bytes, 7), Buffer.alloc(1_024)]);
}

besideOthers("heavy uploads, big outputs and dozing leave a machine alive", async (context) => {
  const sandbox = await make(context);
  // In memory: gone where the machine was started again from its disk.
  await client.shell(sandbox, "echo here > /dev/shm/witness");
  const tar = tarOf(50 * 1_024 * 1_024);
  for (let round = 1; round <= 18; round += 1) {
    const { status } = await client.call(sandbox, "POST", "/v1/files/archive?path=/root/up", { body: tar });
    expect(status).toBe(200);
    if (round % 3 === 0) {
      const { stdout } = await client.exec(sandbox, ["head", "-c", "8000000", "/root/up/big"]);
      expect(stdout).toHaveLength(8_000_000);
    }
    if (round % 6 === 0) await dozesOff(sandbox);
  }
  expect(await client.shell(sandbox, "cat /dev/shm/witness")).toBe("here\n");
  expect(await stateOf(sandbox)).toBe("SANDBOX_STATE_RUNNING");
});

onGvisor("kill -9 of the service leaves none frozen for ever", async (context) => {
  const sandbox = await make(context);
  await dozesOff(sandbox);
  await service.kill9();
  expect(await frozen(sandbox)).toBe(true);
  await service.start();
  await says(sandbox, "adopted");
  await dozesOff(sandbox);
  await service.terminate();
  await service.start();
  // Nobody asks: it dozes again by itself.
  await dozesOff(sandbox);
  await says(sandbox, "again");
});

/** A request whose answer never ends. */
async function follow(sandbox: TestSandbox, path: string): Promise<{ destroy(): void }> {
  const { target } = client.session;
  const request = https.request({
    host: target.edgeHost,
    port: target.edgePort,
    servername: sandbox.domain.replace(/:\d+$/, ""),
    ca: target.ca,
    agent: false,
    path,
    headers: { host: sandbox.domain, authorization: `Bearer ${sandbox.token}` },
  });
  await new Promise<void>((resolve, reject) => {
    request.on("error", reject);
    request.on("response", (response) => {
      response.on("error", () => undefined);
      response.resume();
      resolve();
    });
    request.end();
  });
  return request;
}
