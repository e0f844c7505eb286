/** The machine drivers of this host, by runtime; the first one's is the default. */
import { ClocheError } from "@cloche/protocol";
import type { MachineDriver, Runtime } from "./driver.ts";

export class Drivers {
  readonly #drivers: ReadonlyMap<Runtime, MachineDriver>;

  readonly #requireMayRun: () => void;

  /** `requireMayRun` throws while no machine of this host may begin to run; default: never throws. */
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

  /** Undefined if this host no longer has the runtime of a machine made before. */
  find(runtime: Runtime): MachineDriver | undefined {
    return this.#drivers.get(runtime);
  }

  /** The driver of a runtime. Throws failed_precondition, which lists the available runtimes. */
  of({ runtime }: { runtime: Runtime }): MachineDriver {
    const driver = this.#drivers.get(runtime);
    if (driver) return driver;
    throw new ClocheError(
      "failed_precondition",
      `runtime: ${runtime} is not available on this host; available: ${this.runtimes.join(", ")}`,
    );
  }

  /** The driver, for an operation that makes a machine run. Throws what `requireMayRun` throws. */
  toRun(record: { runtime: Runtime }): MachineDriver {
    this.#requireMayRun();
    return this.of(record);
  }

  /** The class of this host: hosts of equal class restore each other's memory. Empty: no class. */
  async memoryClass(): Promise<string> {
    const classes = await Promise.all(this.all().map((driver) => driver.memoryClass?.()));
    return classes.find((one) => one !== undefined) ?? "";
  }
}
