// What a guest's kernel can take of the host through its tap, with frames that only a hostile one sends.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { guestNetwork } from "@cloche/artifacts";
import { run } from "@cloche/base/run";
import type { NetworkLease } from "../../packages/host/src/drivers/network-slots.ts";
import type { VmEnvironment } from "../../packages/host/src/drivers/qemu/environment.ts";
import { prepareTap } from "../../packages/host/src/drivers/qemu/tap.ts";
import { connectionsPerSlotMax } from "../../packages/host/src/network/rules.ts";
import { LabNetwork } from "../fixtures/lab-network.ts";
import { type Lab, openLab } from "./lab.ts";

const FRAMES = 4_000;
const AGENT_PORT = 61_070;

let lab: Lab;
let network: LabNetwork;
let lease: NetworkLease;
let dir: string;
beforeEach(async () => {
  lab = await openLab();
  network = new LabNetwork(lab.tag);
  lease = await network.lease();
  dir = await mkdtemp(join(tmpdir(), "cloche-tap-"));
  await prepareTap({ native: lab.native } as VmEnvironment, lease, dir, {
    uid: 65_534,
    agentPort: AGENT_PORT,
  });
});
afterEach(async () => {
  await network.release(lease.slot);
  await rm(dir, { recursive: true });
  await lab.close();
});

const inSlot = async (...argv: string[]): Promise<string> =>
  (await run(["nsenter", `--net=${lease.namespacePath}`, ...argv])).stdout;

it("bounds the entries of a guest's connections, and makes no neighbours of addresses that it made up", async () => {
  const { tap, gatewayMac, guestMac, guestAddress, gatewayAddress } = guestNetwork;
  const program = join(import.meta.dirname, "fixtures/hostile-guest.py");
  const about = [tap, gatewayMac, guestMac, guestAddress, gatewayAddress, String(FRAMES)];
  const argv = [`--net=${lease.namespacePath}`, "python3", program, ...about];
  const guest = spawn("nsenter", argv, { stdio: ["pipe", "pipe", "inherit"] });
  const [left] = (await once(guest.stdout, "data")) as [Buffer];
  expect(Number(left), "frames that left the guest").toBe(FRAMES + 100);

  const entries = Number(await inSlot("cat", "/proc/sys/net/netfilter/nf_conntrack_count"));
  expect(entries).toBeGreaterThan(connectionsPerSlotMax);
  expect(entries).toBeLessThanOrEqual(2 * connectionsPerSlotMax);
  const neighbours = (await inSlot("ip", "-o", "neigh", "show", "dev", tap)).trim().split("\n");
  expect(neighbours).toEqual([expect.stringContaining(`${guestAddress} lladdr ${guestMac} PERMANENT`)]);
  guest.stdin.end();
  await once(guest, "exit");
});
