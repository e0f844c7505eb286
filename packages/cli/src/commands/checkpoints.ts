import { findCheckpoint } from "../find-sandbox.ts";
import { positiveNumber, present } from "../options.ts";
import { during } from "../progress.ts";
import { printFields, printJson, printLines, printTable } from "../terminal.ts";
import { act, type Registry } from "../register.ts";

const intoStorage = (): string => "waiting until it is in storage";

/** checkpoint, restore. */
// oxlint-disable-next-line max-lines-per-function -- a list of commands, a few lines each
export function addCheckpointCommands(registry: Registry): void {
  const { program } = registry;
  const checkpoint = program.command("checkpoint").description("snapshots of a sandbox's whole disk");
  checkpoint
    .command("create <sandbox>")
    .description("take a checkpoint; the sandbox runs on")
    .option("--name <name>", "generated when left out")
    .option("--wait", "wait until it is visible in storage, as create and fork from it need")
    .addHelpText("after", "\nExample:\n  cloche checkpoint create demo --name before-upgrade")
    .action(
      act(registry, async (run, nameOrId: string, options: { name?: string; wait?: boolean }) => {
        const sandbox = await run.sandbox(nameOrId);
        const request = { ...present({ name: options.name }), signal: run.signal };
        const created = await during(
          run,
          () => `taking a checkpoint of ${sandbox.info.name}`,
          () => sandbox.checkpoints.create(request),
        );
        if (options.wait === true)
          await during(run, intoStorage, () =>
            sandbox.checkpoints.wait(created.checkpoint_id, { signal: run.signal }),
          );
        if (run.json) return printJson(run.terminal, created);
        return printLines(run.terminal, created.checkpoint_id);
      }),
    );
  checkpoint
    .command("ls [sandbox]")
    .description("list a sandbox's checkpoints; without a sandbox the team's, of deleted sandboxes too")
    .addHelpText("after", "\nExamples:\n  cloche checkpoint ls demo\n  cloche checkpoint ls")
    .action(
      act(registry, async (run, nameOrId: string | undefined) => {
        const { gateway } = run.cloche;
        const request = nameOrId === undefined ? {} : { sandbox_id: (await run.sandbox(nameOrId)).id };
        const checkpoints = await gateway.listCheckpoints(request, { signal: run.signal });
        if (run.json) return printJson(run.terminal, { checkpoints });
        const rows = checkpoints.map((one) => [
          one.id,
          one.name,
          one.sandbox_id,
          one.created_at,
          one.size_human,
          one.visible ? "yes" : "no",
        ]);
        return printTable(run.terminal, ["ID", "NAME", "SANDBOX", "CREATED", "SIZE", "VISIBLE"], rows);
      }),
    );
  checkpoint
    .command("wait <sandbox> <checkpoint>")
    .description("wait until a checkpoint is visible in storage")
    .option("--timeout <seconds>", "default 30", positiveNumber)
    .action(
      act(registry, async (run, nameOrId: string, name: string, options: { timeout?: number }) => {
        const sandbox = await run.sandbox(nameOrId);
        const id = await findCheckpoint(sandbox, name, run.signal);
        const request = { ...present({ timeout_secs: options.timeout }), signal: run.signal };
        const answer = await during(run, intoStorage, () => sandbox.checkpoints.wait(id, request));
        if (run.json) return printJson(run.terminal, answer);
        return printLines(run.terminal, `visible after ${answer.waited_ms} ms`);
      }),
    );
  checkpoint
    .command("rm <checkpoint...>")
    .description("delete checkpoints by id; those of deleted sandboxes too")
    .addHelpText("after", "\nExample:\n  cloche checkpoint rm ckpt-…")
    .action(
      act(registry, async (run, ids: string[]) => {
        let freedBytes = 0;
        for (const id of ids) {
          freedBytes += (await run.cloche.gateway.deleteCheckpoint(id, { signal: run.signal })).freed_bytes;
        }
        if (run.json) return printJson(run.terminal, { deleted: ids, freed_bytes: freedBytes });
        return printLines(run.terminal, ...ids);
      }),
    );

  program
    .command("restore <sandbox> <checkpoint>")
    .description(
      "rewind a sandbox to a checkpoint (id or name), in place; its services of then are started again",
    )
    .addHelpText("after", "\nExample:\n  cloche restore demo before-upgrade")
    .action(
      act(registry, async (run, nameOrId: string, name: string) => {
        const sandbox = await run.sandbox(nameOrId);
        const id = await findCheckpoint(sandbox, name, run.signal);
        const answer = await during(
          run,
          () => `restoring ${sandbox.info.name}`,
          () => sandbox.restore(id, { signal: run.signal }),
        );
        if (run.json) return printJson(run.terminal, answer);
        return printFields(run.terminal, [
          ["restored in", `${answer.restore_duration_ms} ms`],
          ["started", answer.started_services.join(" ")],
          ["stopped", answer.stopped_services.join(" ")],
          ["failed", answer.failed_services.join(" ")],
        ]);
      }),
    );
}
