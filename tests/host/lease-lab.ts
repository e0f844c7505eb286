// A host of a cluster with real machines and the real guard; the gateways are played. Machines count in a file of their disk, which
// can be read from outside: so a test sees whether they run without asking anything of them.
import { existsSync, readFileSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { silentLog, systemClock } from "@cloche/base";
import { Guard } from "../../packages/host/src/index.ts";
import { FakeCluster } from "../../packages/host/src/testing/fake-cluster.ts";
import { FakeNames } from "../../packages/host/src/testing/fake-names.ts";
import { unitNameOf } from "../fixtures/unit-cgroup.ts";
import { HostLab } from "./host-lab.ts";

/** Frozen 3 s after the last renewal, which comes every 2 s; lost 3 s after that. */
const VALID_MS = 6_000;
const COUNTER = "n=0; while true; do n=$((n+1)); echo $n > /root/count; sleep 0.02; done";

export class LeaseLab {
  readonly cluster: FakeCluster;
  readonly host: HostLab;

  private constructor(cluster: FakeCluster, host: HostLab) {
    this.cluster = cluster;
    this.host = host;
  }

  /** `home`: of a host that another process may have begun; it was lost then, and all its machines are admitted. */
  static async open(place: { suffix: string; home?: string }): Promise<LeaseLab> {
    const cluster = new FakeCluster(new FakeNames());
    cluster.validMs = VALID_MS;
    cluster.isLost = place.home !== undefined && existsSync(place.home);
    let guard: Guard | undefined;

    const host = await HostLab.open(0, undefined, {
      ...place,
      cluster: (lab) => {
        const { runDir, tag, artifacts } = lab;
        const { native, guard: program } = artifacts;
        // As when the process before is gone.
        guard?.close();
        const directory = join(runDir, "guard");
        if (cluster.isLost) void admitAll(lab);
        guard = new Guard({ program, directory, tag, native, clock: systemClock, log: silentLog });
        return cluster.parts(guard);
      },
    });
    return new LeaseLab(cluster, host);
  }

  /** A machine that counts; the answer tells whether it runs. */
  async counting(): Promise<{ id: string; file: string }> {
    const { sandboxId: id } = await this.host.create();
    const file = await this.counterOf(id);
    await this.host.exec(id, "sh", "-c", `setsid sh -c '${COUNTER}' </dev/null >/dev/null 2>&1 &`);
    for (let waited = 0; waited < 10_000 && countIn(file) === 0; waited += 20) await sleep(20);
    return { id, file };
  }

  async counterOf(id: string): Promise<string> {
    const unit = await unitNameOf(this.host.home, id);
    return join(this.host.runDir, "gvisor", "slots", unit, "disk", "fs", "root", "count");
  }
}

/** As a gateway does for a host that was lost, once it hears of it. */
async function admitAll(lab: HostLab): Promise<void> {
  while (lab.host?.lease?.awaitsAdmission !== true) await sleep(50, undefined, { ref: false });
  const ids = await readdir(join(lab.artifacts.pool.dir, "machines"));
  await lab.client.admitMachines({ sandboxIds: ids });
}

export function countIn(file: string): number {
  try {
    return Number(readFileSync(file, "utf8"));
  } catch {
    return 0;
  }
}

/** Whether it counts within a second. */
export async function isRunning(file: string): Promise<boolean> {
  const before = countIn(file);
  for (let waited = 0; waited < 1_000; waited += 20) {
    await sleep(20);
    if (countIn(file) > before) return true;
  }
  return false;
}
