import { type Config, ConfigError, loadConfig } from "@cloche/base";
import type { Role } from "@cloche/trust";
import { expect, it } from "vitest";
import { checkRole } from "./role-settings.ts";

const right: Record<Role, Record<string, string>> = {
  gateway: {
    CLOCHE_DATABASE_URL: "postgres://db/cloche",
    CLOCHE_CLUSTER_SECRET_FILE: "/etc/cloche/secret",
    CLOCHE_BLOB_URL: "s3://bucket/x",
  },
  host: { CLOCHE_CLUSTER_GATEWAYS: "gw:7090", CLOCHE_BLOB_URL: "s3://bucket/x" },
  edge: { CLOCHE_CLUSTER_GATEWAYS: "gw-1:7090,[fd00::1]:7090" },
};
const config = (env: Record<string, string>): Config => loadConfig(env, () => undefined);

it.each(["gateway", "host", "edge"] as const)(
  "a %s starts with what it needs, and not without it",
  (role) => {
    checkRole(role, config(right[role]));
    for (const name of Object.keys(right[role])) {
      const { [name]: _, ...rest } = right[role];
      const check = (): void => checkRole(role, config(rest));
      expect(check).toThrow(ConfigError);
      expect(check).toThrow(new RegExp(`cloche ${role}: set ${name} `));
    }
  },
);

it.each([
  ["host", "CLOCHE_DATABASE_URL"],
  ["host", "CLOCHE_CLUSTER_SECRET_FILE"],
  ["edge", "CLOCHE_DATABASE_URL"],
  ["edge", "CLOCHE_CLUSTER_SECRET_FILE"],
] as const)("a %s starts with no %s", (role, name) => {
  const env = { ...right[role], [name]: right.gateway[name] ?? "" };
  expect(() => checkRole(role, config(env))).toThrow(new RegExp(`${name} is for gateways`));
});
