// Installs the Debian packages that tests need and the machine lacks, without starting the services they bring.
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, rmSync, writeFileSync } from "node:fs";

const policyFile = "/usr/sbin/policy-rc.d";

/** `wanted`: package -> a program of it that proves it is there. Throws when they cannot be installed. */
export function ensureDebianPackages(wanted: Readonly<Record<string, string>>): void {
  const missing = Object.entries(wanted)
    .filter(([, program]) => spawnSync("sh", ["-c", `command -v ${program}`]).status !== 0)
    .map(([name]) => name);
  if (missing.length === 0) return;
  if (process.getuid?.() !== 0)
    throw new Error(`the tests need the Debian packages ${missing.join(", ")}; install them, or run as root`);
  console.log(`==> the tests install Debian packages on this machine: ${missing.join(", ")}`);
  // A registry or database that the package starts by itself would take ports from the tests' own.
  const hadPolicy = existsSync(policyFile);
  if (!hadPolicy) writeFileSync(policyFile, "#!/bin/sh\nexit 101\n", { mode: 0o755 });
  try {
    const apt = (...words: string[]): void => {
      execFileSync("apt-get", ["-y", "-q", "-o", "DPkg::Lock::Timeout=300", ...words], {
        stdio: ["ignore", "ignore", "inherit"],
        env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
        timeout: 10 * 60_000,
      });
    };
    try {
      apt("install", "--no-install-recommends", ...missing);
    } catch {
      apt("update");
      apt("install", "--no-install-recommends", ...missing);
    }
  } finally {
    if (!hadPolicy) rmSync(policyFile, { force: true });
  }
}
