// What is left when all the other files are done (it comes last: vitest.config.ts): of virtual machines nothing once their sandboxes
// are deleted, of the service nothing once it is stopped.
import { beforeAll, expect, inject, test } from "vitest";
import { markedProcesses } from "../../packages/host/src/drivers/qemu/driver.ts";
import { childGroups } from "../../packages/host/src/drivers/cgroup.ts";
import { vmCgroupRoot } from "../../packages/host/src/drivers/qemu/vm-cgroup.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { emptyInventory, grown, inventory } from "../fixtures/inventory.ts";
import { TestService } from "../fixtures/service.ts";
import { machineFolders } from "./host-side.ts";

const { home, env, target } = inject("service");
let service: TestService;
beforeAll(async () => {
  service = await TestService.running(home, env);
});

test("deleted machines leave no process, cgroup, file, mount, loop device or table", async () => {
  const client = new Client(target);
  const ofMachines = async (): Promise<string[]> => {
    const { sandboxes } = await client.gateway<{ sandboxes: { id: string }[] }>("ListSandboxes");
    const { mounts, loopDevices } = inventory(home);
    return [
      ...sandboxes.map(({ id }) => id),
      ...(await markedProcesses(service.tag)).map(({ pid, id }) => `QEMU ${pid} of ${id}`),
      ...(await childGroups(vmCgroupRoot(service.tag))).map((id) => `cgroup ${id}`),
      ...machineFolders(home).map((id) => `directory ${id}`),
      ...mounts.filter((path) => path.startsWith(`${home}/pool/`)),
      // The pool's own stays, and those of gVisor machines kept ready.
      ...loopDevices.filter((line) => !line.endsWith("/pool.xfs") && !line.includes("/pool/ready/")),
    ];
  };
  // A delete is answered once it is durable, and done a little later.
  expect(await eventually(ofMachines, (found) => found.length === 0, 240_000)).toEqual([]);
  expect(inventory(home).nftTables).toHaveLength(1);
  await client.close();
});

test("a service that is stopped leaves nothing on the machine", async () => {
  const { code, stderr } = await service.stop();
  expect(code, stderr).toBe(0);
  expect(grown(emptyInventory, inventory(home))).toEqual([]);
});
