// The machine drivers of this host, by runtime; the first one's is the default.
import { ClocheError } from "@cloche/protocol";
import type { MachineDriver, Runtime } from "./driver.ts";

export class Drivers {
  readonly #drivers: ReadonlyMap<Runtime, MachineDriver>;

  readonly #requireMayRun: () => void;

  /** `requireMayRun` throws while no machine of this host may begin to run; default: it never does. */
  constructor(drivers: ReadonlyMap<Runtime, MachineDriver>, requireMayRun = (): void => undefined) {
    this.#drivers = drivers;
    this.#requireMayRun = requireMayRun;
  }

  get runtimes(): Runtime[] {
    return [...this.#drivers.keys()];
  }

  all(): MachineDriver[] {
    return [...this.#drivers.values()];
  }

  /** Undefined: a machine of an earlier start, whose runtime this host no longer has. */
  find(runtime: Runtime): MachineDriver | undefined {
    return this.#drivers.get(runtime);
  }

  /** Throws failed_precondition, with the runtimes that there are. */
  of({ runtime }: { runtime: Runtime }): MachineDriver {
    const driver = this.#drivers.get(runtime);
    if (driver) return driver;
    throw new ClocheError(
      "failed_precondition",
      `runtime: ${runtime} is not available on this host; available: ${this.runtimes.join(", ")}`,
    );
  }

  /** The driver, for something that makes a machine run. */
  toRun(record: { runtime: Runtime }): MachineDriver {
    this.#requireMayRun();
    return this.of(record);
  }

  /** Hosts of one class resume each other's memory. Empty: of none. */
  async memoryClass(): Promise<string> {
    const classes = await Promise.all(this.all().map((driver) => driver.memoryClass?.()));
    return classes.find((one) => one !== undefined) ?? "";
  }
}
