import { statfsSync } from "node:fs";
import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** What counts the leftovers of the other files of a project runs after them. */
class CensusLast extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const isCensus = ({ moduleId }: TestSpecification): boolean => moduleId.endsWith("/census.test.ts");
    const sorted = await super.sort(files);
    return [...sorted.filter((file) => !isCensus(file)), ...sorted.filter(isCensus)];
  }
}

/** Unit tests run side by side; what touches the machine (mounts, namespaces, sandboxes) runs one file at a time. */
const onMachine = (name: string, folder: string, more: object = {}) => ({
  test: {
    name,
    include: [`${folder}/**/*.test.ts`],
    pool: "forks" as const,
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 300_000,
    ...more,
  },
});

/** The files of the project share one service, started before the first and destroyed after the last. */
const onService = {
  globalSetup: ["tests/fixtures/shared-service.ts"],
  testTimeout: 300_000,
  hookTimeout: 600_000,
};

/** The same with virtual machines, which are several times slower where they are emulated. */
const onVmService = {
  globalSetup: ["tests/fixtures/shared-vm-service.ts"],
  env: { CLOCHE_RUNTIME: "qemu" },
  testTimeout: 600_000,
  hookTimeout: 900_000,
};

/** Where unit tests write: in memory if there is room, for thousands of small durable writes wait for a disk that others use. */
function memoryFolder(): Record<string, string> {
  try {
    const { bavail, bsize } = statfsSync("/dev/shm");
    return bavail * bsize > 2 ** 30 ? { TMPDIR: "/dev/shm" } : {};
  } catch {
    return {};
  }
}

export default defineConfig({
  test: {
    sequence: { sequencer: CensusLast },
    projects: [
      {
        test: {
          name: "unit",
          include: [
            "packages/*/src/**/*.test.ts",
            "tests/repository/**/*.test.ts",
            "tests/conformance/**/*.test.ts",
            "tests/fixtures/**/*.test.ts",
            "tests/runner/**/*.test.ts",
            "bench/**/*.test.ts",
          ],
          pool: "forks",
          env: memoryFolder(),
          // Vitest leaves one processor free, which on two is half of them.
          maxWorkers: availableParallelism(),
          testTimeout: 30_000,
        },
      },
      onMachine("contracts", "tests/contracts"),
      onMachine("deploy", "tests/deploy"),
      onMachine("guest", "tests/guest"),
      onMachine("host", "tests/host"),
      onMachine("oci", "tests/oci"),
      onMachine("e2e", "tests/e2e", onService),
      onMachine("clients", "tests/clients", onService),
      onMachine("service", "tests/service", onService),
      onMachine("faults", "tests/faults", { testTimeout: 300_000, hookTimeout: 600_000 }),
      onMachine("cluster", "tests/cluster", {
        globalSetup: ["tests/cluster/shared-lab.ts"],
        testTimeout: 180_000,
        hookTimeout: 600_000,
      }),
      onMachine("upgrade", "tests/upgrade", { testTimeout: 300_000, hookTimeout: 600_000 }),
      onMachine("fuzz", "tests/fuzz", onService),
      // Every attack runs on every runtime.
      onMachine("vm", "tests/vm", {
        ...onVmService,
        include: ["tests/vm/**/*.test.ts", "tests/e2e/isolation*.test.ts"],
      }),
      onMachine("vm-all", "tests/{e2e,clients,service}", onVmService),
    ],
  },
});
