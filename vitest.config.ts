import { defineConfig } from "vitest/config";

/** Unit tests run side by side; what touches the machine (mounts, namespaces, sandboxes) runs one file at a time. */
const onMachine = (name: string, folder: string) => ({
  test: {
    name,
    include: [`${folder}/**/*.test.ts`],
    pool: "forks" as const,
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 300_000,
  },
});

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: "unit",
          include: [
            "packages/*/src/**/*.test.ts",
            "tests/repository/**/*.test.ts",
            "tests/conformance/**/*.test.ts",
            "tests/fixtures/**/*.test.ts",
            "bench/**/*.test.ts",
          ],
          pool: "forks",
          testTimeout: 30_000,
        },
      },
      onMachine("contracts", "tests/contracts"),
      onMachine("guest", "tests/guest"),
      onMachine("host", "tests/host"),
      onMachine("oci", "tests/oci"),
      onMachine("e2e", "tests/e2e"),
      onMachine("faults", "tests/faults"),
      onMachine("fuzz", "tests/fuzz"),
    ],
  },
});
