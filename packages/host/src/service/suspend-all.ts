// The service stops for good: every machine gives its memory and CPU back, and none loses more than it must.
import { eachLimited } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { withoutMemory } from "./cold-start-words.ts";
import type { OperationParts } from "./create-machine.ts";
import { suspendMachine } from "./suspend-machine.ts";

export async function suspendAll(parts: OperationParts): Promise<void> {
  const { machines } = parts;
  const running = machines.all().filter(({ phase }) => phase === "running");
  await eachLimited(running, ({ id }) =>
    machines.queue.run(id, async () => {
      if (machines.find(id)?.phase !== "running") return;
      try {
        await suspendMachine(parts, id);
      } catch (error) {
        machines.parts.log.warn(
          { err: error, sandbox_id: id },
          "memory could not be saved: shutting down instead",
        );
        await shutDown(parts, id, error).catch((problem: unknown) => {
          machines.parts.log.error({ err: problem, sandbox_id: id }, "could not be shut down: it goes on");
        });
      }
    }),
  );
}

/** Services end the gentle way, the disk is flushed, the machine goes. It starts cold from its disk, with its services. */
async function shutDown({ machines }: OperationParts, id: string, why: unknown): Promise<void> {
  const record = machines.get(id);
  await machines.agent(record).shutdown();
  await machines.driver(record).stopMachine(machines.files(record));
  const detail = why instanceof ClocheError ? `: ${why.message}` : "";
  const errorMessage = withoutMemory(`it could not be saved when the service stopped${detail}`);
  await machines.change(id, { phase: "stopped", errorMessage }, { durable: true });
}
