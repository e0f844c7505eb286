/**
 * Stop of the service for good: frees the memory and CPU of every machine. Each is suspended, or shut down if it cannot be.
 */
import { eachPatiently } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { withoutMemory } from "./cold-start-messages.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { Parts } from "./parts.ts";
import { cutOffAfter } from "./cut-off.ts";
import { suspendMachine } from "./suspend-machine.ts";

/** Machines suspended at once: each writes its memory to the disk. */
const atOnceMax = 8;
/** Flushing a slow disk and writing a large memory take minutes. A machine that takes longer hangs. */
const suspendMs = 180_000;
/** After this long with one machine the next one begins as well, so that machines that hang do not delay the others. */
const patienceLimitMs = 10_000;

export async function suspendAll(parts: OperationParts): Promise<void> {
  const { machines, queue, clock } = parts;
  const running = machines.all().filter(({ phase }) => phase === "running");
  const ending = await eachPatiently(running, ({ id }) => queue.run(id, () => suspendOrEnd(parts, id)), {
    clock,
    atOnce: atOnceMax,
    patienceMs: patienceLimitMs,
  });
  // Each is bounded by the deadlines of its steps.
  await Promise.all(ending);
}

async function suspendOrEnd(parts: OperationParts, id: string): Promise<void> {
  const { machines, agents, log } = parts;
  if (machines.find(id)?.phase !== "running") return;
  try {
    // Do not wait suspendMs for a machine whose agent does not answer.
    const agent = agents.of(machines.get(id));
    const silence = await agent.getActivity().then(() => undefined, ClocheError.from);
    if (silence) await end(parts, id, silence, silence);
    else await suspendOrShutDown(parts, id);
  } catch (error) {
    log.error({ err: error, sandbox_id: id }, "could not be shut down: it goes on");
  }
}

async function suspendOrShutDown(parts: OperationParts, id: string): Promise<void> {
  const { machines, agents, log } = parts;
  const suspend = (): Promise<unknown> => suspendMachine(parts, id);
  try {
    await cutOffAfter(parts, id, suspendMs, "the service stops", suspend);
  } catch (error) {
    log.warn({ err: error, sandbox_id: id }, "memory could not be saved: shutting down instead");
    const refusal = await agents
      .of(machines.get(id))
      .shutdown()
      .then(() => undefined, ClocheError.from);
    await end(parts, id, error, refusal);
  }
}

/**
 * Ends the machine. Its services ended gracefully and its disk was flushed, unless `refusal` says why not: then it ends as in a power
 * cut. It later starts cold from its disk, with its services.
 */
async function end(
  { machines, drivers, log }: Parts<"machines" | "drivers" | "log">,
  id: string,
  why: unknown,
  refusal: ClocheError | undefined,
): Promise<void> {
  if (refusal) log.warn({ err: refusal, sandbox_id: id }, "it does not shut down by itself: it is ended");
  const record = machines.get(id);
  await drivers.of(record).stopMachine(machines.files(record));
  const detail = why instanceof ClocheError ? `: ${why.message}` : "";
  const errorMessage = withoutMemory(`it could not be saved when the service stopped${detail}`);
  await machines.move(id, "ended", { errorMessage }, { durable: true });
}
