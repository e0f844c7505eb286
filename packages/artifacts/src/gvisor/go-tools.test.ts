import { describe, expect, it } from "vitest";
import { canFetchToolchains, networkVariables } from "./go-tools.ts";
import { withChoice } from "./runsc-seccomp.ts";
import { dayText, parseRunscVersion, releaseDay } from "./runsc-version.ts";

describe("the machine's Go", () => {
  it("starts the build when it can fetch a tool chain", () => {
    for (const version of ["go1.21", "go1.21.0", "go1.23.5", "go1.26.8", "go1.27rc1", "go2.0"])
      expect(canFetchToolchains(`go version ${version} linux/amd64`), version).toBe(true);
  });

  it("is not used when it is too old, unreleased or something else", () => {
    for (const version of ["go1.19.8", "go1.3", "devel go1.27-abcdef", "gccgo (Debian) 12"])
      expect(canFetchToolchains(`go version ${version} linux/amd64`), version).toBe(false);
    expect(canFetchToolchains("")).toBe(false);
  });

  it("is told how the network is reached, and nothing else", () => {
    expect(
      networkVariables({
        HTTPS_PROXY: "http://proxy:3128",
        no_proxy: "localhost",
        SSL_CERT_FILE: "/ca.pem",
        NETRC: "/netrc",
        GOFLAGS: "-race",
        AWS_SECRET_ACCESS_KEY: "secret",
        MY_HTTP_PROXY_PASSWORD: "secret",
      }),
    ).toEqual({
      HTTPS_PROXY: "http://proxy:3128",
      no_proxy: "localhost",
      SSL_CERT_FILE: "/ca.pem",
      NETRC: "/netrc",
    });
  });
});

describe("versions of runsc", () => {
  it("name their day", () => {
    for (const [version, day] of [
      ["20260905.0", "20260905"],
      ["release-20261116.0", "20261116"],
      ["release-20261116.0-12-gabcdef012345", "20261116"],
      ["0.0~20240729.0", "20240729"],
    ] as const)
      expect(dayText(releaseDay(version) ?? new Date(0)), version).toBe(day);
  });

  it("name none when there is none", () => {
    for (const version of ["VERSION_MISSING", "20261332.0", "20260231.0", "120260905", "1.2.3"])
      expect(releaseDay(version), version).toBeUndefined();
  });

  it("stand in what runsc prints, and in nothing else", () => {
    expect(parseRunscVersion("runsc version release-20261116.0\nspec: 1.2.1\n")?.version).toBe(
      "release-20261116.0",
    );
    expect(parseRunscVersion("true (GNU coreutils) 9.1\nversion 20260905.0")).toBeUndefined();
  });
});

describe("the seccomp step", () => {
  const before = "\tprograms := make([]precompiledseccomp.Program, len(opts))\n";

  it("puts its choice before the list is compiled", () => {
    const text = withChoice("a.go", `func f() {\n${before}}\n`);
    expect(text.indexOf("Wanted(opt.ConfigKey())")).toBeLessThan(text.indexOf(before));
    expect(text).toContain("var Wanted func(key string) bool");
  });

  it("fails on sources that have another shape", () => {
    expect(() => withChoice("a.go", "package config\n")).toThrow("a.go of gVisor is not as expected");
    expect(() => withChoice("a.go", before + before)).toThrow("not as expected");
  });
});
