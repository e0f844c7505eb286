// What a driver that keeps machines ready needs of the host service: fresh disks, and agents that were prepared.
import { defaults } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import type { ReadyHooks } from "../machine/driver.ts";
import { GuestClient } from "./guest-client.ts";
import { MAX_PROCESSES, type Machines } from "./machines.ts";

const ENTROPY_BYTES = 32;

export function readyHooks(machines: Machines): ReadyHooks {
  const { native, templates, randomBytes } = machines.parts;
  return {
    async disk(image) {
      await cloneDisk(native, await templates.ofSize(defaults.diskMb), image);
    },
    async prepare(agent, secret) {
      await new GuestClient(agent, secret).prepare({
        entropyBase64: Buffer.from(randomBytes(ENTROPY_BYTES)).toString("base64"),
        maxProcesses: MAX_PROCESSES,
        keys: machines.guestKeys(),
      });
    },
    async detachDisk(agent, secret) {
      await new GuestClient(agent, secret).detachDisk();
    },
  };
}
