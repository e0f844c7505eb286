import {
  type OnHostLoss,
  onHostLosses,
  type OnTimeout,
  onTimeouts,
  type PublicPorts,
  type Sandbox,
  type SandboxInfo,
  type SandboxState,
} from "@cloche/sdk";
import { defaults } from "@cloche/protocol";
import { Option } from "commander";
import { UsageError } from "../exit-codes.ts";
import {
  collect,
  collectPairs,
  collectPorts,
  positiveNumber,
  present,
  seconds,
  wholeNumber,
} from "../options.ts";
import { during } from "../progress.ts";
import { printJson, printLines } from "../terminal.ts";
import { nameIsFree } from "../sandbox-names.ts";
import { showSandbox, showSandboxes } from "../sandbox-view.ts";
import { shortState, parseState } from "../sandbox-format.ts";
import { waitFor } from "../wait-for.ts";
import { egressOf } from "./egress.ts";
import { runService } from "./local-service.ts";
import { act, type Registry, type Run } from "../register.ts";

interface MachineOptions {
  name?: string;
  allowDuplicateName?: boolean;
  metadata?: Record<string, string>;
  timeout?: number;
  onTimeout?: OnTimeout;
  idleSuspend?: number;
  autoResume?: boolean;
  onHostLoss?: OnHostLoss;
  checkpointEvery?: number;
  publicPort?: PublicPorts;
  egress?: string[];
  idempotencyKey?: string;
  wait: boolean;
}
interface ListOptions {
  state?: string[];
  metadata?: Record<string, string>;
  quiet?: boolean;
  output?: "wide";
}
interface ChangeOptions {
  wait: boolean;
  memory?: boolean;
  durable?: boolean;
}
type ForkOptions = MachineOptions & { checkpoint?: string; count?: number };

const lifetimes = (options: MachineOptions) => ({
  name: options.name,
  metadata: options.metadata,
  timeout_seconds: options.timeout,
  on_timeout: options.onTimeout,
  idle_suspend_seconds: options.idleSuspend,
  auto_resume: options.autoResume,
  on_host_loss: options.onHostLoss,
  checkpoint_every_seconds: options.checkpointEvery,
  egress: options.egress === undefined ? undefined : egressOf(options.egress),
  idempotency_key: options.idempotencyKey,
});

/** The last known state, for progress while the command waits. */
const stateOf = (sandbox: Sandbox) => (): string => `${sandbox.info.name}: ${shortState(sandbox.info.state)}`;

async function untilRunning(run: Run, sandbox: Sandbox): Promise<void> {
  if (sandbox.info.state === "SANDBOX_STATE_RUNNING") return;
  await during(run, stateOf(sandbox), () => waitFor(run, sandbox, "SANDBOX_STATE_RUNNING"));
}

async function settled(run: Run, sandbox: Sandbox, wait: boolean): Promise<void> {
  if (wait) await untilRunning(run, sandbox);
  await showSandbox(run, sandbox.info);
}

const hostLoss = (whenLeftOut: string): Option =>
  new Option(
    "--on-host-loss <what>",
    `what happens when it runs and its host is lost; ${whenLeftOut}`,
  ).choices(onHostLosses);

const duplicateName = (): Option =>
  new Option("--allow-duplicate-name", "also if another sandbox of the team has the name");

/** create, ls, get, rm, suspend, resume, fork, update. */
// oxlint-disable-next-line max-lines-per-function -- a list of commands, a few lines each
export function addSandboxCommands(registry: Registry): void {
  const { program } = registry;

  program
    .command("create")
    .description("create a sandbox and wait until it runs")
    .option("--name <name>", "generated when left out; no other sandbox of the team may have it")
    .addOption(duplicateName())
    .option("--cpus <number>", `default ${defaults.cpus}`, positiveNumber)
    .option("--memory <mb>", `default ${defaults.memoryMb}`, wholeNumber)
    .option("--disk <mb>", `default ${defaults.diskMb}`, wholeNumber)
    .option("-e, --env <KEY=VALUE>", "for every command and service; repeatable", collectPairs)
    .option("--metadata <KEY=VALUE>", "repeatable", collectPairs)
    .option("--template <name>", "default base")
    .option("--checkpoint <id>", "start from this checkpoint's disk")
    .addOption(new Option("--runtime <runtime>", "default the service's").choices(["gvisor", "qemu"]))
    .option("--timeout <time>", "delete it after this time (90, 5m, 2h, 7d); default never", seconds)
    .addOption(new Option("--on-timeout <what>", "what happens then; default delete").choices(onTimeouts))
    .option("--idle-suspend <time>", "suspend it after this time without activity; default never", seconds)
    .option("--auto-resume", "wake it when its data plane is called while suspended")
    .addOption(hostLoss("default error"))
    .option("--checkpoint-every <time>", "take a checkpoint so often (60 to 24h); default never", seconds)
    .option(
      "--public-port <port>",
      "open this port (*: every port) to anyone, without a token; repeatable",
      collectPorts,
    )
    .option(
      "--egress <policy>",
      "what it may reach: open (default), none, or a domain or address that is allowed; repeatable",
      collect,
    )
    .option("--idempotency-key <text>", "a create repeated with it within 24 hours answers the same sandbox")
    .option("--no-wait", "do not wait until it runs")
    .addHelpText(
      "after",
      "\nExamples:\n  cloche create --name demo\n  cloche create --cpus 1 --memory 512 -e LANG=C.UTF-8 --json",
    )
    .action(
      act(registry, async (run, options: MachineOptions & Record<string, never>) => {
        const request = present({
          ...lifetimes(options),
          cpus: options.cpus,
          memory_mb: options.memory,
          disk_mb: options.disk,
          env: options.env,
          template: options.template,
          checkpoint_id: options.checkpoint,
          runtime: options.runtime,
          public_ports: options.publicPort,
        });
        await nameIsFree(run, options);
        const sandbox = await during(
          run,
          () => "creating",
          () => run.cloche.create(request, { signal: run.signal }),
        );
        await settled(run, sandbox, options.wait);
      }),
    );

  program
    .command("ls")
    .alias("list")
    .description("list the team's sandboxes, newest first")
    .option("--state <state>", "only these: running, suspended, …; repeatable", collect)
    .option("--metadata <KEY=VALUE>", "only with these; repeatable", collectPairs)
    .option("-q, --quiet", "only ids")
    .addOption(
      new Option("-o, --output <form>", "wide: with host, runtime, times, domain, whole reasons").choices([
        "wide",
      ]),
    )
    .addHelpText("after", "\nExamples:\n  cloche ls\n  cloche ls -o wide\n  cloche ls --state running -q")
    .action(
      act(registry, async (run, options: ListOptions) => {
        const states = options.state?.map(parseState);
        const infos: SandboxInfo[] = [];
        const request = present({ states, metadata: options.metadata });
        for await (const { info } of run.cloche.list(request, { signal: run.signal })) infos.push(info);
        if (options.quiet === true && !run.json)
          return printLines(run.terminal, ...infos.map(({ id }) => id));
        return showSandboxes(run, infos, options.output === "wide");
      }),
    );

  program
    .command("get <sandbox>")
    .description("show a sandbox")
    .addHelpText("after", "\nExample:\n  cloche get demo --json")
    .action(
      act(registry, async (run, nameOrId: string) => showSandbox(run, (await run.sandbox(nameOrId)).info)),
    );

  program
    .command("rm <sandbox...>")
    .alias("delete")
    .description("delete sandboxes for good; their checkpoints stay")
    .option("--wait", "wait until they are gone")
    .addHelpText("after", "\nExample:\n  cloche rm demo sbx-4k2")
    .action(
      act(registry, async (run, namesOrIds: string[], options: { wait?: boolean }) => {
        const sandboxes = await Promise.all(namesOrIds.map((nameOrId) => run.sandbox(nameOrId)));
        await Promise.all(
          sandboxes.map(async (sandbox) => {
            await sandbox.delete({ signal: run.signal });
            if (options.wait === true) await sandbox.waitUntilDeleted({ signal: run.signal });
          }),
        );
        if (run.json) return printJson(run.terminal, { deleted: sandboxes.map(({ id }) => id) });
        return printLines(run.terminal, ...sandboxes.map(({ id }) => id));
      }),
    );

  const change = (
    verb: "suspend" | "resume",
    alias: string,
    to: SandboxState,
    description: string,
    own: readonly Option[] = [],
  ): void => {
    const command = program.command(`${verb} <sandbox>`).alias(alias).description(description);
    for (const option of own) command.addOption(option);
    command
      .option("--no-wait", "answer at once")
      .addHelpText("after", `\nExample:\n  cloche ${verb} demo`)
      .action(
        act(registry, async (run, nameOrId: string, options: ChangeOptions) => {
          const sandbox = await run.sandbox(nameOrId);
          // Printed only if it is not the default.
          const settings = {
            ...(options.memory === false && { memory: false }),
            ...(options.durable === true && { waitDurable: true }),
          };
          await during(run, stateOf(sandbox), async () => {
            await sandbox[verb]({ ...settings, signal: run.signal });
            if (options.wait) await waitFor(run, sandbox, to);
          });
          await showSandbox(run, sandbox.info);
        }),
      );
  };
  change(
    "suspend",
    "stop",
    "SANDBOX_STATE_SUSPENDED",
    "freeze a running sandbox, memory and all, and wait until it is frozen",
    [
      new Option("--no-memory", "keep the disk alone: it resumes cold, with the services that ran"),
      new Option(
        "--durable",
        "wait up to a minute until it is in storage and outlives its host; in a cluster",
      ),
    ],
  );
  change(
    "resume",
    "start",
    "SANDBOX_STATE_RUNNING",
    "let a suspended sandbox run on, and wait until it runs",
  );

  program
    .command("fork <sandbox>")
    .description("clone a running sandbox, processes and all; or start a new one from its checkpoint")
    .option(
      "--name <name>",
      "of the clone; generated when left out; no other sandbox of the team may have it",
    )
    .addOption(duplicateName())
    .option("--checkpoint <id>", "start from this checkpoint of the source instead")
    .option("--metadata <KEY=VALUE>", "repeatable; default the source's", collectPairs)
    .option("--timeout <time>", "delete the clone after this time", seconds)
    .option("--idle-suspend <time>", "suspend the clone after this time without activity", seconds)
    .option("--auto-resume", "wake the clone when its data plane is called while suspended")
    .addOption(hostLoss("default the source's"))
    .option("--checkpoint-every <time>", "default the source's; 0: never", seconds)
    .option(
      "--egress <policy>",
      "what it may reach: open, none, or a domain or address that is allowed; repeatable; default the source's",
      collect,
    )
    .option("--count <number>", "so many clones of one instant, 1 to 100: all or none", wholeNumber)
    .option("--idempotency-key <text>", "a fork repeated with it within 24 hours answers the same clone")
    .option("--no-wait", "do not wait until it runs")
    .addHelpText(
      "after",
      "\nExamples:\n  cloche fork demo --name demo-2\n  cloche fork demo --count 8 --name worker",
    )
    .action(
      act(registry, async (run, nameOrId: string, options: ForkOptions) => {
        const source = await run.sandbox(nameOrId);
        const request = present({ ...lifetimes(options), checkpoint_id: options.checkpoint });
        const { count } = options;
        await nameIsFree(run, options);
        const clones = await during(
          run,
          () => `forking ${source.info.name}`,
          async () =>
            count === undefined
              ? [await source.fork(request, { signal: run.signal })]
              : await source.forkMany(count, request, { signal: run.signal }),
        );
        if (options.wait) for (const clone of clones) await untilRunning(run, clone);
        if (count === undefined) for (const { info } of clones) await showSandbox(run, info);
        else
          await showSandboxes(
            run,
            clones.map(({ info }) => info),
          );
      }),
    );

  program
    .command("update [sandbox]")
    .description(
      "change a sandbox's name, metadata, lifetimes or public ports; without a sandbox: make what new ones are made of anew where Debian has newer packages (on the service's machine)",
    )
    .option("--check", "without a sandbox: only say what is old; exit code 100 when something is")
    .option("--name <name>", "no other sandbox of the team may have it")
    .addOption(duplicateName())
    .option("--metadata <KEY=VALUE>", "replaces all; repeatable", collectPairs)
    .option("--no-metadata", "removes all")
    .option("--timeout <time>", "delete or suspend it this long from now; 0: never", seconds)
    .addOption(new Option("--on-timeout <what>", "what happens then").choices(onTimeouts))
    .option("--idle-suspend <time>", "0: never", seconds)
    .option("--auto-resume")
    .option("--no-auto-resume")
    .addOption(hostLoss("replaces what was said"))
    .option("--checkpoint-every <time>", "0: never", seconds)
    .option("--public-port <port>", "replaces all; *: every port; repeatable", collectPorts)
    .option("--no-public-port", "closes all")
    .addHelpText(
      "after",
      "\nExamples:\n  cloche update demo --timeout 2h\n  cloche update demo --public-port 8080\n  cloche update --check",
    )
    .action((nameOrId: string | undefined, options: Record<string, unknown>) => {
      if (nameOrId === undefined) return updateMachine(registry, options);
      return updateSandbox(nameOrId, options);
    });
  const updateSandbox = act(registry, async (run, nameOrId: string, options: Record<string, unknown>) => {
    const { check, metadata, publicPort, allowDuplicateName, ...rest } = options as Omit<
      MachineOptions,
      "metadata" | "publicPort"
    > & {
      check?: boolean;
      metadata?: Record<string, string> | boolean;
      publicPort?: PublicPorts | boolean;
    };
    const request = present({
      ...lifetimes(rest),
      metadata: metadata === false ? {} : typeof metadata === "object" ? metadata : undefined,
      public_ports: publicPort === false ? [] : Array.isArray(publicPort) ? publicPort : undefined,
    });
    if (check === true) throw new UsageError("--check is for cloche update without a sandbox");
    if (Object.keys(request).length === 0)
      throw new UsageError("nothing to change; see cloche update --help");
    const sandbox = await run.sandbox(nameOrId);
    if (rest.name !== sandbox.info.name)
      await nameIsFree(run, present({ name: rest.name, allowDuplicateName }));
    await showSandbox(run, await sandbox.update(request, { signal: run.signal }));
  });
}

/** `update` without a sandbox. */
async function updateMachine(
  registry: Registry,
  { check, ...others }: Record<string, unknown>,
): Promise<void> {
  if (Object.keys(others).length > 0)
    throw new UsageError("these options change a sandbox: name it, as in cloche update demo --timeout 2h");
  await runService(registry, ["update", ...(check === true ? ["--check"] : [])]);
}
