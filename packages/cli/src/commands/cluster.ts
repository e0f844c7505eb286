import { Option } from "commander";
import { UsageError } from "../exit-codes.ts";
import { runAndReport, runService } from "./local-service.ts";
import type { Registry } from "../register.ts";

const roles = {
  gateway: "serve as a gateway of a cluster: the API, and a port for its other parts",
  edge: "serve as an edge of a cluster: TLS and routing for clients",
  host: "serve as a host of a cluster: the machines of this computer",
};

const orders = {
  cordon: "a host of the cluster takes no new sandboxes; those it has stay",
  uncordon: "a host of the cluster takes sandboxes again",
  drain: "a host of the cluster takes no new sandboxes, and those it has move to others",
};

/** gateway, edge, host, join-token, hosts, cordon, uncordon, drain, forget: of a cluster, on the computer of the part. */
export function addClusterCommands(registry: Registry): void {
  const { program } = registry;
  for (const [role, does] of Object.entries(roles))
    program
      .command(role)
      .description(does)
      .option("-d, --detach", "return when it is ready")
      .addHelpText("after", `\nExample:\n  cloche ${role} --detach`)
      .action(async ({ detach }: { detach?: boolean }) => {
        if (program.opts<{ json?: boolean }>().json === true && detach !== true)
          throw new UsageError(`--json needs --detach: without, ${role} does not end`);
        await runService(registry, [role, ...(detach === true ? ["--detach"] : [])]);
      });
  program
    .command("join-token")
    .description("print what brings a new host or edge into the cluster; on a gateway")
    .argument("<role>", "host or edge")
    .option("--reusable", "for any number of newcomers, for a year")
    .addOption(new Option("--hours <number>", "how long it is good (default: 1, of a reusable one 8760)"))
    .addHelpText("after", "\nExample:\n  cloche join-token host")
    .action(async (role: string, { reusable, hours }: { reusable?: boolean; hours?: string }) => {
      const flags = [...(reusable === true ? ["--reusable"] : []), ...(hours ? ["--hours", hours] : [])];
      await runService(registry, ["join-token", role, ...flags]);
    });
  program
    .command("hosts")
    .description("the hosts of the cluster, their states and their memory; on a gateway")
    .addHelpText("after", "\nExample:\n  cloche hosts --json")
    .action(async () => void (await runService(registry, ["hosts"])));
  for (const [order, does] of Object.entries(orders))
    program
      .command(order)
      .description(`${does}; on a gateway`)
      .argument("<host>", "its id, as `cloche hosts` shows it")
      .addHelpText("after", `\nExample:\n  cloche ${order} host-1`)
      .action((host: string) => runAndReport(registry, [order, host], { host, done: order }));
  program
    .command("forget")
    .description("another computer may join under the id of one that is gone for good; on a gateway")
    .argument("<part>", "host/<id> or edge/<id>")
    .addHelpText("after", "\nExample:\n  cloche forget host/host-1")
    .action((part: string) => runAndReport(registry, ["forget", part], { part, done: "forget" }));
}
