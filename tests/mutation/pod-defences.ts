// Defences of machines that outlive the pod of their host (defences.ts).
import type { Defence } from "./defence.ts";

const outlive = { project: "host", test: "tests/host/outlive.test.ts", named: "lives on" } as const;
const place = { project: "unit", test: "packages/host/src/sys/launch-place.test.ts" } as const;
const conditions = { project: "unit", test: "packages/host/src/sys/pod-conditions.test.ts" } as const;
const file = "packages/host/src/sys/launch-place.ts";

export const podDefences: readonly Defence[] = [
  {
    what: "what outlives a pod leaves its cgroups in every tree",
    file,
    find: `["sh", "-c", enter, "cloche-apart", ...groups, "--", ...argv]`,
    replace: `["sh", "-c", enter, "cloche-apart", ...groups.slice(1), "--", ...argv]`,
    ...outlive,
  },
  {
    what: "what outlives a pod has the node's mounts",
    file,
    find: `["nsenter", "--target", String(nodePid), "--mount", "--", ...argv]`,
    replace: `["env", "--", ...argv]`,
    ...outlive,
  },
  {
    what: "disks are mounted from the node's mounts, whose names a loop device keeps",
    file: "packages/host/src/sys/native.ts",
    find: "return (this.#outliving ?? this).#callFor(operationMs, operation, ...args);",
    replace: "return this.#callFor(operationMs, operation, ...args);",
    project: "host",
    test: "tests/host/outlive.test.ts",
    named: "finds the file",
  },
  {
    what: "the unified tree of a hybrid is one of those that are left",
    file,
    find: `if (existsSync(join(tree, "cgroup.procs"))) trees.add(tree);`,
    replace: `if (existsSync(join(tree, "cgroup.procs")) && name !== "unified") trees.add(tree);`,
    ...place,
  },
  {
    what: "a pod whose mounts do not reach the node is refused",
    file: "packages/host/src/sys/pod-conditions.ts",
    find: "if (group === undefined || group !== peerGroup(nodes, path)) {",
    replace: "if (group === undefined) {",
    ...conditions,
  },
  {
    what: "one host at a time adopts the machines of a home",
    file: "packages/host/src/sys/hold-home.ts",
    find: `join(home, "run", "host.lock")`,
    replace: "join(home, `${performance.now()}.lock`)",
    project: "unit",
    test: "packages/host/src/sys/hold-home.test.ts",
  },
];
