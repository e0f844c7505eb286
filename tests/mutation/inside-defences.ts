// Of what a sandbox has inside, and of what a service chooses or mends at its start.
import type { Defence } from "./defence.ts";

export const insideDefences: readonly Defence[] = [
  {
    what: "another process on a service's health port does not make it run",
    file: "packages/agent/src/services/health.ts",
    find: "(await accepts(port, signal)) && own()",
    replace: "(await accepts(port, signal))",
    project: "unit",
    test: "packages/agent/src/services/supervisor.test.ts",
    named: "another's server",
  },
  {
    what: "a restore reports as started what still serves a moment later",
    file: "packages/agent/src/services/supervisor.ts",
    find: "this.#services.get(name)?.serving !== true",
    replace: "false",
    project: "unit",
    test: "packages/agent/src/services/supervisor.test.ts",
    named: "a moment later",
  },
  {
    what: "a line of tmpfiles.d follows no link out of /run",
    file: "native/guest/tmpfiles.c",
    find: "int next = open_directory_itself(at, leaf);",
    replace: "int next = openat(at, leaf, O_RDONLY | O_DIRECTORY | O_CLOEXEC);",
    project: "guest",
    test: "tests/guest/run-folder.test.ts",
    named: "nothing of it leads out",
  },
  {
    what: "/tmp is the disk's",
    file: "packages/agent/src/spawner/native-guest.ts",
    find: 'options.tmpfs ?? ["/run"]',
    replace: 'options.tmpfs ?? ["/run", "/tmp"]',
    project: "guest",
    test: "tests/guest/run-folder.test.ts",
    named: "the disk's",
  },
  {
    what: "a subnet that others use is not chosen",
    file: "packages/host/src/network/choose-subnet.ts",
    find: "taken.find(({ range }) => overlaps(range, subnet))",
    replace: "taken.find(() => false)",
    project: "unit",
    test: "packages/host/src/network/choose-subnet.test.ts",
  },
  {
    what: "a database that was put in another's place learns the home's key",
    file: "packages/app/src/local-team.ts",
    find: 'if (kept !== undefined && state === "good")',
    replace: "if (kept !== undefined)",
    project: "unit",
    test: "packages/app/src/local-team.test.ts",
  },
];
