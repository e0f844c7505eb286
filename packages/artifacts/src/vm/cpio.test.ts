import { describe, expect, it } from "vitest";
import { cpioArchive, cpioDirectory, cpioFile } from "./cpio.ts";

describe("cpioArchive", () => {
  it("writes headers of 110 bytes, names and data on multiples of four, and the trailer", () => {
    const archive = cpioArchive([cpioDirectory("bin"), cpioFile("bin/a", Buffer.from("hello"), true)]);
    expect(archive.length % 4).toBe(0);
    expect(archive.subarray(0, 14).toString()).toBe("07070100000001");
    const second = 116; // 110 + "bin\0" = 114, padded
    expect(archive.subarray(second, second + 6).toString()).toBe("070701");
    expect(Number.parseInt(archive.subarray(second + 14, second + 22).toString(), 16)).toBe(0o100755);
    expect(Number.parseInt(archive.subarray(second + 54, second + 62).toString(), 16)).toBe(5);
    expect(archive.subarray(second + 110, second + 116).toString()).toBe("bin/a\0");
    expect(archive.subarray(second + 116, second + 121).toString()).toBe("hello");
    expect(archive.includes("TRAILER!!!\0")).toBe(true);
  });

  it("is the same for the same entries", () => {
    const entries = [cpioDirectory("x"), cpioFile("x/y", Buffer.alloc(10_000, 7))];
    expect(cpioArchive(entries).equals(cpioArchive(entries))).toBe(true);
  });
});
