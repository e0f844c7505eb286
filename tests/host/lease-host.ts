// A host of a cluster as a process of its own, for lease.test.ts to kill: `lease-host.ts HOME` makes a machine that counts, says where,
// and stays. `lease-host.ts HOME end` takes away what the one before left.
import { isRunning, LeaseLab } from "./lease-lab.ts";

const [home = "", what] = process.argv.slice(2);
const lab = await LeaseLab.open({ suffix: "", home });
if (what === "end") {
  const { machines } = await lab.host.client.listMachines({});
  for (const { sandboxId } of machines)
    if (!(await isRunning(await lab.counterOf(sandboxId)))) throw new Error(`${sandboxId} does not go on`);
  await lab.host.destroyAll();
  await lab.host.close();
} else {
  const { id, file } = await lab.counting();
  console.log(JSON.stringify({ id, file, tag: lab.host.tag }));
}
