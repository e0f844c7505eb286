// A machine that the host pauses to look at its processes (fork bombs): it goes on whatever happens, and snapshots wait for it.
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { obtainKeeper } from "../../packages/artifacts/src/programs/programs.ts";
import { goneLease, Unit, type UnitRecord } from "../../packages/host/src/drivers/gvisor/unit.ts";
import { leaveSleeping } from "../fixtures/background.ts";
import { HostLab } from "./host-lab.ts";

let lab: HostLab;
let keeper: string;
beforeAll(async () => {
  lab = await HostLab.open();
  keeper = await obtainKeeper(process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache", () => undefined);
});
afterAll(async () => {
  await lab.destroyAll();
  await lab.close();
});

async function machine(): Promise<{ sandboxId: string; unit: Unit }> {
  const { sandboxId } = await lab.create();
  const units = join(lab.runDir, "gvisor/units");
  const texts = readdirSync(units).map((name) => readFileSync(join(units, name, "unit.json"), "utf8"));
  const record = JSON.parse(texts.find((text) => text.includes(sandboxId)) ?? "") as UnitRecord;
  const { native, runsc, agentRoot } = lab.artifacts;
  const environment = {
    tag: lab.tag,
    runDir: join(lab.runDir, "gvisor"),
    runsc: runsc.path,
    keeper,
    native,
    agentRoot,
  };
  return { sandboxId, unit: new Unit(environment, record, goneLease(record.slot)) };
}

it("lists its processes, refuses to be paused twice, and goes on", async () => {
  const { sandboxId, unit } = await machine();
  await lab.exec(sandboxId, "sh", "-c", leaveSleeping("1000"));
  const seen = await unit.whilePaused(async (sentry) => {
    expect(await unit.whilePaused(() => Promise.resolve("again"))).toBeUndefined();
    return sentry.processes();
  });
  expect(seen?.map(({ cmd }) => cmd)).toEqual(expect.arrayContaining(["cloche-init", "sleep"]));
  expect(await lab.exec(sandboxId, "echo", "alive")).toBe("alive");
});

it("goes on where what was to be done fails", async () => {
  const { sandboxId, unit } = await machine();
  await expect(unit.whilePaused(() => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await lab.exec(sandboxId, "echo", "alive")).toBe("alive");
});

it("is snapshotted once it goes on", async () => {
  const { sandboxId, unit } = await machine();
  const done: string[] = [];
  let clone = Promise.resolve();
  await unit.whilePaused(async (sentry) => {
    clone = unit.cloneDisk(join(lab.artifacts.pool.dir, "clone.ext4")).then(() => void done.push("cloned"));
    await sentry.processes();
    done.push("listed");
  });
  await clone;
  expect(done).toEqual(["listed", "cloned"]);
  expect(await lab.exec(sandboxId, "echo", "alive")).toBe("alive");
});

it("goes on with the next service where this one ended meanwhile", async () => {
  const { sandboxId, unit } = await machine();
  await lab.exec(sandboxId, "sh", "-c", "echo kept > /run/note");
  execFileSync(keeper, ["pause", unit.socket, join(unit.directory, "paused")]);
  await lab.restart();
  expect(await lab.exec(sandboxId, "cat", "/run/note")).toBe("kept");
});
