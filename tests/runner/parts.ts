// The parts of `npm test`, in the order in which they start, two at a time: what breaks most, and says so soonest, first, and the
// longest beside it; then the long ones before the short, so that both lanes end together.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { whyNoLastRelease } from "../upgrade/last-release.ts";

export interface Part {
  readonly name: string;
  /** Past this the part is ended and counts as a failure. With another part beside it. */
  readonly deadlineMs: number;
  /** npm scripts, each counted as one test; else a vitest project of the part's name. */
  readonly scripts?: readonly string[];
  /** Where its tests lie; a part without tests is left out. */
  readonly folder?: string;
  /** Runs only when it is asked for. */
  readonly byNameOnly?: boolean;
  /** Debian packages that it needs beyond what the service installs for itself, and a program of each that proves it there, or more of a shell's words. */
  readonly packages?: Readonly<Record<string, string>>;
  /** Why it cannot run in this checkout; undefined: it can. Then it is left out, unless it is asked for. */
  readonly whyNot?: () => string | undefined;
}

const minute = 60_000;

/** To make OCI images, and a registry to pull them from. */
const imagePackages = {
  umoci: "umoci",
  skopeo: "skopeo",
  "docker-registry": "docker-registry",
  "busybox-static": "busybox",
  "redis-tools": "redis-check-rdb",
};

/** What people reach a machine with. */
const sshPackages = { "openssh-client": "ssh", rsync: "rsync", git: "git", curl: "curl" };

/** Clients that are no work of ours. */
const clientPackages = {
  python3: "python3",
  "python3-requests": "python3 && python3 -c 'import requests'",
  ...sshPackages,
};

export const parts: readonly Part[] = [
  {
    name: "check",
    deadlineMs: 5 * minute,
    scripts: ["check:types", "check:lint", "check:format", "check:native", "check:unused"],
  },
  {
    name: "e2e",
    deadlineMs: 30 * minute,
    folder: "tests/e2e",
    packages: { ...clientPackages, ...imagePackages },
  },
  { name: "unit", deadlineMs: 12 * minute },
  { name: "host", deadlineMs: 20 * minute, folder: "tests/host" },
  // Whole services: started, stopped, killed, taken over.
  { name: "service", deadlineMs: 25 * minute, folder: "tests/service", packages: clientPackages },
  // What a virtual machine could do otherwise than gVisor, and what can happen to one; all of e2e on them is vm-all.
  { name: "vm", deadlineMs: 30 * minute, folder: "tests/vm", packages: imagePackages },
  // SDKs, adapters, MCP, and the published packages.
  {
    name: "clients",
    deadlineMs: 20 * minute,
    folder: "tests/clients",
    packages: { ...clientPackages, ...imagePackages },
  },
  // The first run of a machine builds an S3 server: two minutes more.
  { name: "cluster", deadlineMs: 15 * minute, folder: "tests/cluster" },
  { name: "contracts", deadlineMs: 15 * minute, folder: "tests/contracts" },
  { name: "faults", deadlineMs: 15 * minute, folder: "tests/faults" },
  { name: "guest", deadlineMs: 15 * minute, folder: "tests/guest" },
  { name: "oci", deadlineMs: 12 * minute, folder: "tests/oci", packages: imagePackages },
  { name: "fuzz", deadlineMs: 8 * minute, folder: "tests/fuzz" },
  { name: "upgrade", deadlineMs: 6 * minute, folder: "tests/upgrade", whyNot: whyNoLastRelease },
  // The Helm chart and the images' format, without a cluster.
  { name: "deploy", deadlineMs: 5 * minute, folder: "tests/deploy", packages: { python3: "python3" } },
  {
    name: "vm-all",
    deadlineMs: 50 * minute,
    folder: "tests/e2e",
    byNameOnly: true,
    packages: { ...clientPackages, ...imagePackages },
  },
];

/** All parts together end before CI's hour does. */
export const allPartsDeadlineMs = 58 * minute;

/** Whether a part has tests in this checkout. */
export function hasTests(part: Part, root: string): boolean {
  if (part.folder === undefined) return true;
  try {
    return readdirSync(join(root, part.folder), { recursive: true, encoding: "utf8" }).some((name) =>
      name.endsWith(".test.ts"),
    );
  } catch {
    return false;
  }
}
