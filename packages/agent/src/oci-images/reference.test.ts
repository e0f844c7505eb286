import { describe, expect, it } from "vitest";
import { parseReference } from "./reference.ts";

const hex = "a".repeat(64);
const hub = "registry-1.docker.io";

describe("parseReference", () => {
  it.each([
    ["redis", hub, "library/redis", "latest"],
    ["redis:7-alpine", hub, "library/redis", "7-alpine"],
    ["bitnami/redis", hub, "bitnami/redis", "latest"],
    ["docker.io/redis", hub, "library/redis", "latest"],
    ["docker.io/library/redis:7", hub, "library/redis", "7"],
    ["index.docker.io/a/b", hub, "a/b", "latest"],
    ["ghcr.io/org/app:v1", "ghcr.io", "org/app", "v1"],
    ["localhost/app", "localhost", "app", "latest"],
    ["localhost:5000/app", "localhost:5000", "app", "latest"],
    ["127.0.0.1:5000/a/b/c:x_y.z-1", "127.0.0.1:5000", "a/b/c", "x_y.z-1"],
    ["[::1]:5000/app", "[::1]:5000", "app", "latest"],
    [`redis@sha256:${hex}`, hub, "library/redis", `sha256:${hex}`],
    [`ghcr.io/org/app:v1@sha256:${hex}`, "ghcr.io", "org/app", `sha256:${hex}`],
  ])("reads %s", (text, registry, repository, target) => {
    const digest = text.includes("@") ? target : undefined;
    expect(parseReference(text)).toEqual({ kind: "registry", registry, repository, target, digest });
  });

  it.each([
    ["oci:/images/app", "/images/app", undefined],
    ["oci:/images/app:v1", "/images/app", "v1"],
    ["oci:/odd:dir/app", "/odd:dir/app", undefined],
  ])("reads %s", (text, path, tag) => {
    expect(parseReference(text)).toEqual({ kind: "layout", path, tag });
  });

  it.each([
    "",
    "Redis",
    "re dis",
    "redis:",
    "redis:a b",
    ":7",
    "redis@sha256:abc",
    `redis@md5:${hex}`,
    `redis@sha256:${hex}@sha256:${hex}`,
    "http://evil/app",
    "../etc",
    "a//b",
    "host.example/../x",
    "-host.example/x",
    "host.example:999999/x",
    "ho\nst.example/x",
    "oci:relative",
    "oci:/a\0b",
    "x".repeat(2_000),
  ])("refuses %j", (text) => {
    expect(() => parseReference(text)).toThrow(expect.objectContaining({ name: "ImageError" }));
  });
});
