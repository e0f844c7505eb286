import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "@cloche/base";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { printBanner } from "./banner.ts";
import { gvisorAge, gvisorText } from "./gvisor-age.ts";
import { printStatus } from "./status.ts";
import { type ServiceStatus, writeStatus } from "./status-file.ts";

const young = { version: "20260905.0", released: "2026-09-05" };
const at = (day: string): number => Date.parse(`${day}T12:00:00Z`);

describe("age of gVisor", () => {
  it("is told in days, with a warning from a year on", () => {
    expect(gvisorAge(young, at("2026-11-25"))).toEqual({ age_days: 81 });
    expect(gvisorText(young, at("2026-09-06"))).toBe("20260905.0 (2026-09-05, 1 day old)");
    expect(gvisorAge(young, at("2027-09-04")).warning).toBeUndefined();
    expect(gvisorAge(young, at("2027-09-06")).warning).toContain("older than 12 months");
  });

  it("is not made up: a clock before the release, a version without a day", () => {
    expect(gvisorAge(young, at("2026-01-01"))).toEqual({ age_days: 0 });
    expect(gvisorAge({ version: "own" }, at("2026-01-01"))).toEqual({});
    expect(gvisorText({ version: "own" }, at("2026-01-01"))).toBe("own");
  });
});

describe("banner and status", () => {
  let home = "";
  let said: string[] = [];
  beforeEach(async () => {
    home = await mkdtemp(join(tmpdir(), "cloche-age-"));
    said = [];
    vi.spyOn(console, "log").mockImplementation((text: string) => void said.push(text));
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await rm(home, { recursive: true, force: true });
  });
  const status = (gvisor?: ServiceStatus["gvisor"]): ServiceStatus => ({
    gateway_url: "http://127.0.0.1:7080",
    edge_url: "https://127.0.0.1:7443",
    base_domain: "cloche.localhost",
    ca_cert: "/ca.pem",
    api_key: "key",
    runtime: "gvisor",
    emulated: false,
    ...(gvisor && { gvisor }),
    version: "0.1.0",
    pid: 0,
    ready: true,
  });
  const shown = async (gvisor: ServiceStatus["gvisor"], json: boolean): Promise<string> => {
    const config = loadConfig({ CLOCHE_HOME: home });
    await writeStatus(home, status(gvisor));
    said = [];
    await printStatus(config, json);
    return said.join("\n");
  };
  const old = { version: "release-20250101.0", released: "2025-01-01" };

  it("name version and age", async () => {
    const config = loadConfig({ CLOCHE_HOME: home });
    const now = Date.parse("2026-11-25T12:00:00Z");
    await printBanner(config, status(young), now);
    expect(said.join("\n")).toContain("gVisor    20260905.0 (2026-09-05, 81 days old)");
    expect(said.join("\n")).not.toContain("WARNING");
    expect(await shown(young, false)).toMatch(/^gVisor\s+20260905\.0 \(2026-09-05, \d+ days old\)$/m);
    const json = JSON.parse(await shown(young, true)) as Record<string, unknown>;
    expect(json["gvisor"]).toMatchObject({ ...young, age_days: expect.any(Number) });
  });

  it("warn of one that is older than a year", async () => {
    await printBanner(loadConfig({ CLOCHE_HOME: home }), status(old), Date.parse("2026-11-25T12:00:00Z"));
    expect(said.join("\n")).toContain("WARNING: gVisor release-20250101.0 is older than 12 months");
    expect(await shown(old, false)).toContain("older than 12 months");
    const json = JSON.parse(await shown(old, true)) as { gvisor: { warning: string } };
    expect(json.gvisor.warning).toContain("docs/operations.md");
  });

  it("read the file of an earlier release, which names none", async () => {
    expect(await shown(undefined, false)).not.toContain("gVisor");
    expect(JSON.parse(await shown(undefined, true))).not.toHaveProperty("gvisor");
  });
});
