import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { ConfigError, loadConfig } from "./config.ts";

const noFile = (): undefined => undefined;

describe("loadConfig", () => {
  it("has the decided defaults", () => {
    const config = loadConfig({}, noFile);
    expect(config).toMatchObject({
      home: "/var/lib/cloche",
      cache: "/var/lib/cloche/cache",
      gatewayPort: 7080,
      edgePort: 7443,
      edgeHttpPort: 7081,
      mcpPort: 7083,
      mcpHosts: [],
      baseDomain: "cloche.localhost",
      tokenLifetimeSeconds: 3600,
      runtime: "auto",
    });
  });

  it("takes names and addresses of MCP as they stand in a Host header", () => {
    const config = loadConfig({ CLOCHE_MCP_HOSTS: "mcp.example.com, 10.0.0.1,fd00::1" }, noFile);
    expect(config.mcpHosts).toEqual(["mcp.example.com", "10.0.0.1", "[fd00::1]"]);
  });

  it.each([
    ["CLOCHE_GATEWY_PORT", "CLOCHE_GATEWAY_PORT"],
    ["CLOCHE_HOEM", "CLOCHE_HOME"],
    ["CLOCHE_WARMPOOL", "CLOCHE_WARM_POOL"],
  ])("refuses %s and names %s", (wrong, meant) => {
    expect(() => loadConfig({ [wrong]: "1" }, noFile)).toThrow(`did you mean ${meant}?`);
  });

  it("passes over variables of clients and of other programs", () => {
    const env = {
      CLOCHE_URL: "x",
      CLOCHE_API_KEY: "x",
      CLOCHE_EDGE_URL: "x",
      CLOCHE_DIR: "/x",
      CLOCHE_NAME: "x",
    };
    expect(loadConfig(env, noFile).gatewayPort).toBe(7080);
  });

  it("prefers the environment to the file and the file to defaults", () => {
    const file = () => "gateway_port: 9000\nedge_port: 9001\n";
    const config = loadConfig({ CLOCHE_GATEWAY_PORT: "9100" }, file);
    expect([config.gatewayPort, config.edgePort]).toEqual([9100, 9001]);
  });

  it.each([
    [{ CLOCHE_GATEWAY_PORT: "70800" }, "", /CLOCHE_GATEWAY_PORT is "70800"; it must be a TCP port/],
    [{ CLOCHE_RUNTIME: "docker" }, "", /CLOCHE_RUNTIME is "docker"; it must be auto, gvisor or qemu/],
    [
      { CLOCHE_MCP_HOSTS: "https://a.example" },
      "",
      /CLOCHE_MCP_HOSTS is .*; it must be lower-case DNS names/,
    ],
    [{ CLOCHE_HOME: "relative" }, "", /CLOCHE_HOME is "relative"; it must be an absolute path/],
    [{}, "edge_port: many", /edge_port in .*config.yaml is "many"/],
    [{}, "egde_port: 1", /setting egde_port in .* is unknown; known are/],
    [{ CLOCHE_VM_HANG_SECONDS: "9" }, "", /CLOCHE_VM_HANG_SECONDS is "9"; it must be whole seconds from 10/],
    [{}, "- 1", /must hold "setting: value" lines/],
    [{}, "a: [", /is not valid YAML/],
    [{ CLOCHE_TOKEN_LIFETIME_SECONDS: "0" }, "", /CLOCHE_TOKEN_LIFETIME_SECONDS is "0"/],
  ])("refuses %j with file %j", (env, text, message) => {
    const load = () => loadConfig(env as NodeJS.ProcessEnv, () => text);
    expect(load).toThrow(ConfigError);
    expect(load).toThrow(message);
  });

  it("says so when the named config file is not there", () => {
    expect(() => loadConfig({ CLOCHE_CONFIG: "/nowhere.yaml" }, noFile)).toThrow(
      /CLOCHE_CONFIG names \/nowhere.yaml/,
    );
  });
});

describe("a setting's default", () => {
  const read = (file: string): string => readFileSync(new URL(file, import.meta.url), "utf8");
  const source = read("./config.ts") + read("./cluster-settings.ts");
  // name: setting("CLOCHE_NAME", "name", default, parse, words)
  const found = [...source.matchAll(/^ {2}(\w+): setting\(\s*"(CLOCHE_\w+)",\s*"(\w+)",\s*([^,]+),/gm)];
  const config = loadConfig({}, noFile);
  const unitOf = (name: string): string | undefined =>
    /(seconds|minutes|hours|days|bytes|gib|gb|mb|kb|ms)$/i.exec(name)?.[1]?.toLowerCase();

  it("is looked at for every setting", () => {
    expect(found.map(([, name]) => name)).toEqual(Object.keys(config));
  });

  it.each(found.map(([, name = "", env = "", key = "", fallback = ""]) => ({ name, env, key, fallback })))(
    "is one that could be set, in the unit of its name: $env",
    ({ name, env, key, fallback }) => {
      expect(env).toBe(`CLOCHE_${key.toUpperCase()}`);
      expect(name).toBe(key.replaceAll(/_(\w)/g, (_, letter: string) => letter.toUpperCase()));
      const value = config[name as keyof typeof config];
      // An empty text counts as not set, and a list is read from its text.
      if (name !== "cache" && String(value) !== "")
        expect(loadConfig({ [env]: String(value) }, noFile)[name as keyof typeof config]).toEqual(value);
      // The name of a default has the same unit as the setting's name.
      const from = /^defaults\.([\w.]+)/.exec(fallback)?.[1]?.split(".").at(-1);
      if (from !== undefined) expect(unitOf(from), fallback).toBe(unitOf(name));
    },
  );
});
