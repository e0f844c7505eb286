// A host that no gateway reaches, while edges still do: it freezes its machines before another may run them, and what it still has of them
// when it is back goes.
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { eventually } from "../fixtures/client.ts";
import { isRunning } from "../fixtures/unit-cgroup.ts";
import { GATEWAYS, HOSTS } from "../lab/lab.ts";
import { machinesOn, theCluster } from "./cluster.ts";

const cluster = theCluster();
const { lab } = cluster;
const MOVED_MS = 60_000;

/** Hosts on which the machine is there and runs. */
async function runningOn(id: string): Promise<string[]> {
  const looks = HOSTS.map(async (host) => {
    const home = lab.home(host);
    if (!machinesOn(home).some((machine) => machine.id === id)) return [];
    // A machine that goes just then has no cgroup: it does not run.
    return (await isRunning(home, id).catch(() => false)) ? [host] : [];
  });
  return (await Promise.all(looks)).flat();
}

it("never lets two copies of a machine run, and comes back without the old one", async () => {
  const { client } = cluster;
  const box = await client.create({ memory_mb: 256, on_host_loss: "restart_from_checkpoint" });
  const old = await cluster.hostOf(box);
  await client.shell(box, "echo kept > /root/kept");
  // Something to do on either host, or it dozes and looks as frozen.
  const busy = { cmd: "sh", args: ["-c", "while :; do date > /tmp/now; sleep 0.1; done"] };
  await client.call(box, "PUT", "/v1/services/busy", { json: busy });
  expect((await client.call(box, "POST", "/v1/services/busy/start")).status).toBe(200);
  const taken = await client.call(box, "POST", "/v1/checkpoint", { json: {} });
  expect(taken.status).toBe(200);
  await cluster.visible((JSON.parse(taken.body.toString()) as { checkpoint_id: string }).checkpoint_id);
  const [generation] = await lab.sql(`select generation from hosts where id = '${old}'`);

  const seen = new Set<string>();
  let isOver = false;
  const watch = (async () => {
    for (; !isOver; await sleep(50)) seen.add((await runningOn(box.id)).join(" and "));
  })();
  await lab.connect(old, GATEWAYS, false);
  const now = await eventually(
    () => cluster.hostOf(box),
    (host) => host !== old && host !== "",
    MOVED_MS,
  );
  await eventually(
    () => runningOn(box.id),
    (hosts) => hosts.includes(now),
    MOVED_MS,
  );
  expect(await client.shell(box, "cat /root/kept")).toBe("kept\n");
  await lab.connect(old, GATEWAYS, true);
  await lab.ready(old);
  const left = await eventually(
    () => machinesOn(lab.home(old)).filter(({ id }) => id === box.id),
    (machines) => machines.length === 0,
  );
  isOver = true;
  await watch;

  expect(left).toEqual([]);
  expect(existsSync(lab.home(old))).toBe(true);
  // One, then none while the old one is frozen and the new one not begun, then the other.
  expect([...seen].toSorted()).toEqual(["", old, now].toSorted());
  const [next] = await lab.sql(`select generation from hosts where id = '${old}'`);
  expect(Number(next)).toBeGreaterThan(Number(generation));
  expect(await client.shell(box, "cat /root/kept")).toBe("kept\n");
});
