import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { besideHost, cgroupTrees, openApartFromPod } from "./launch-place.ts";

let mount: string;
beforeEach(() => {
  mount = mkdtempSync(join(tmpdir(), "cloche-trees-"));
});
afterEach(() => rmSync(mount, { recursive: true }));

const tree = (name: string): string => {
  const path = join(mount, name);
  mkdirSync(path);
  writeFileSync(join(path, "cgroup.procs"), "");
  return path;
};

describe("out of a pod", () => {
  it("changes nothing on a machine of its own", async () => {
    expect(besideHost.apart(["a", "b"])).toEqual(["a", "b"]);
    expect(besideHost.outliving(["a", "b"])).toEqual(["a", "b"]);
  });

  it("finds every tree of a hybrid once, the unified one too", async () => {
    const wanted = [tree("cpu,cpuacct"), tree("memory"), tree("systemd"), tree("unified")];
    symlinkSync("cpu,cpuacct", join(mount, "cpu"));
    mkdirSync(join(mount, "no-tree"));
    expect((await cgroupTrees(mount)).sort()).toEqual(wanted.sort());
  });

  it("finds the only tree of v2", async () => {
    writeFileSync(join(mount, "cgroup.controllers"), "cpu memory");
    expect(await cgroupTrees(mount)).toEqual([mount]);
  });

  it("enters every group before it becomes the program", async () => {
    const trees = [tree("memory"), tree("unified")];
    const place = await openApartFromPod("ab12cd", { trees });
    const [program, ...words] = place.apart(["sh", "-c", 'echo "$1"', "sh", "two words"]);
    expect(execFileSync(program, words, { encoding: "utf8" })).toBe("two words\n");
    for (const one of trees) {
      expect(readFileSync(join(one, "cloche-ab12cd-apart/cgroup.procs"), "utf8")).toBe("0\n");
    }
  });

  it("starts nothing where a group cannot be entered", async () => {
    const one = tree("memory");
    const place = await openApartFromPod("ab12cd", { trees: [one] });
    rmSync(join(one, "cloche-ab12cd-apart"), { recursive: true });
    const [program, ...words] = place.apart(["true"]);
    expect(() => execFileSync(program, words, { stdio: "ignore" })).toThrow(/Command failed/);
  });

  it("gives a group the processors of its tree, without which nothing enters it", async () => {
    const one = tree("cpuset");
    for (const name of ["cpuset.cpus", "cpuset.mems"]) {
      mkdirSync(join(one, "cloche-ab12cd-apart"), { recursive: true });
      writeFileSync(join(one, name), "0-1\n");
      writeFileSync(join(one, "cloche-ab12cd-apart", name), "");
    }
    const place = await openApartFromPod("ab12cd", { trees: [one] });
    expect(readFileSync(join(one, "cloche-ab12cd-apart/cpuset.cpus"), "utf8")).toBe("0-1\n");
    expect(readFileSync(join(one, "cloche-ab12cd-apart/cpuset.mems"), "utf8")).toBe("0-1\n");
    for (const name of ["cpuset.cpus", "cpuset.mems"]) rmSync(join(one, "cloche-ab12cd-apart", name));
    await place.remove();
    await place.remove();
    expect(existsSync(join(one, "cloche-ab12cd-apart"))).toBe(false);
  });
});
