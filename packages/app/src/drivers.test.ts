import { loadConfig, silentLog } from "@cloche/base";
import type { Network, VmPlatform } from "@cloche/host";
import type { HostSetup } from "@cloche/host/setup";
import { expect, it } from "vitest";
import { type DriverParts, gvisorOptions, qemuOptions } from "./drivers.ts";
import type { ProgressPrinter } from "./progress.ts";

/** Only the settings count here. */
const partsWith = (env: Record<string, string>): DriverParts => ({
  config: loadConfig({ CLOCHE_HOME: "/nowhere", ...env }, () => undefined),
  artifacts: { pool: { dir: "/nowhere/pool" }, runsc: {} } as HostSetup,
  tag: "abcdef",
  network: {} as Network,
  progress: {} as ProgressPrinter,
  log: silentLog,
});
const platform = {} as VmPlatform;

it("a machine that hangs is ended after the time of the setting, and looked at thrice in it", () => {
  const parts = partsWith({ CLOCHE_VM_HANG_SECONDS: "30", CLOCHE_GVISOR_HANG_SECONDS: "12" });
  expect(qemuOptions(parts, platform).health).toEqual({ intervalMs: 10_000, hungAfterMs: 30_000 });
  expect(gvisorOptions(parts).health).toEqual({ intervalMs: 4_000, hungAfterMs: 12_000 });
});

it("without the setting the driver says how long a virtual machine may hang, by how it runs", () => {
  const parts = partsWith({});
  expect(qemuOptions(parts, platform)).not.toHaveProperty("health");
  expect(gvisorOptions(parts).health).toEqual({ intervalMs: 10_000, hungAfterMs: 60_000 });
});
