// What a host's lease does to real sandboxes.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Code } from "@connectrpc/connect";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { cgroupOf, isFrozen } from "../fixtures/unit-cgroup.ts";
import { inventory } from "../fixtures/inventory.ts";
import { countIn, isRunning, LeaseLab } from "./lease-lab.ts";

const PROGRAM = new URL("lease-host.ts", import.meta.url).pathname;
/** From when gateways are away until machines are frozen, at most. */
const FREEZE_MS = 3_300;
const LOST_MS = 8_000;

let lab: LeaseLab;
beforeAll(async () => {
  lab = await LeaseLab.open({ suffix: "-lease" });
}, 600_000);
afterAll(async () => {
  await lab?.host.destroyAll();
  await lab?.host.close();
  expect(inventory(lab.host.home).processes).toEqual([]);
});
beforeEach(async () => {
  await lab.host.destroyAll();
});

const lease = () => lab.host.host.lease;

describe("a host that reaches no gateway", () => {
  it("freezes its machines in time and changes nothing; dozing ones doze on when it is back", async () => {
    const [awake, dozing] = [await lab.counting(), await lab.counting()];
    const nap = await cgroupOf(lab.host.home, dozing.id);
    await nap.freeze(true);
    lab.cluster.isAway = true;
    await sleep(FREEZE_MS);
    expect(lease()?.isHeld).toBe(false);
    expect(await isRunning(awake.file)).toBe(false);
    const { client } = lab.host;
    await expect(client.suspendMachine({ sandboxId: awake.id })).rejects.toMatchObject({
      code: Code.Unavailable,
    });
    expect((await lab.host.checkpoint(awake.id, "POST", "/v1/checkpoint", {})).status).toBe(503);
    expect((await client.listMachines({})).machines).toHaveLength(2);
    lab.cluster.isAway = false;
    await expect.poll(() => lease()?.isHeld, { timeout: 3_000 }).toBe(true);
    expect(await isRunning(awake.file)).toBe(true);
    expect([await isRunning(dozing.file), await isFrozen(lab.host.home, dozing.id)]).toEqual([false, true]);
    await nap.freeze(false);
    expect(await isRunning(dozing.file)).toBe(true);
    // Nothing of it was harmed.
    expect(await lab.host.exec(awake.id, "echo", "well")).toBe("well");
  });

  it("goes on, once it was lost, with the machines that are still its own; others never run again", async () => {
    const [kept, moved] = [await lab.counting(), await lab.counting()];
    const pid = await lab.host.exec(kept.id, "sh", "-c", "pgrep -f 'count; sleep' | head -1");
    lab.cluster.isAway = true;
    await sleep(LOST_MS);
    const last = countIn(moved.file);
    Object.assign(lab.cluster, { isAway: false, isLost: true });
    await expect.poll(() => lease()?.awaitsAdmission, { timeout: 3_000 }).toBe(true);
    expect([await isRunning(kept.file), countIn(moved.file)]).toEqual([false, last]);
    const before = countIn(kept.file);
    await lab.host.client.admitMachines({ sandboxIds: [kept.id] });
    lab.cluster.awaitsAdmission = false;
    expect(await isRunning(kept.file)).toBe(true);
    expect(countIn(kept.file) - before).toBeLessThan(200);
    expect(await lab.host.exec(kept.id, "sh", "-c", "pgrep -f 'count; sleep' | head -1")).toBe(pid);
    expect((await lab.host.client.listMachines({})).machines.map(({ sandboxId }) => sandboxId)).toEqual([
      kept.id,
    ]);
  });
});

describe("a host whose process is killed", () => {
  it("starts again within its lease without a machine standing still", async () => {
    const { id, file } = await lab.counting();
    const { generation = 0 } = lease() ?? {};
    let longestMs = 0;
    const watching = new AbortController();
    const watched = (async () => {
      for (let [count, sinceMs] = [0, performance.now()]; !watching.signal.aborted; await sleep(10)) {
        if (countIn(file) !== count) [count, sinceMs] = [countIn(file), performance.now()];
        longestMs = Math.max(longestMs, performance.now() - sinceMs);
      }
    })();
    await lab.host.restart();
    await sleep(4_000);
    watching.abort();
    await watched;
    expect(lease()).toMatchObject({ generation: generation + 1, isHeld: true, wasLost: false });
    expect(longestMs).toBeLessThan(1_000);
    expect(await lab.host.exec(id, "echo", "well")).toBe("well");
  });

  it("has its machines frozen in time by the guard, and the next one finds them", async () => {
    const home = `/var/tmp/cloche-host-${process.pid}-killed`;
    const child = spawn(process.execPath, [PROGRAM, home], { stdio: ["ignore", "pipe", "inherit"] });
    const [line] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
    const { file } = JSON.parse(line) as { file: string };
    expect(await isRunning(file)).toBe(true);
    child.kill("SIGKILL");
    await once(child, "exit");
    expect(await isRunning(file)).toBe(true);
    await sleep(FREEZE_MS);
    expect(await isRunning(file)).toBe(false);
    const end = spawn(process.execPath, [PROGRAM, home, "end"], { stdio: "inherit" });
    const [code] = (await once(end, "exit")) as [number];
    expect(code).toBe(0);
    expect(inventory(home).processes).toEqual([]);
  }, 120_000);
});
