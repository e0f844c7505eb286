import { expect, it } from "vitest";
import { parseMountinfo } from "./mounts.ts";

it("reads mountinfo with optional fields, escapes and binds", () => {
  const text = [
    "36 35 98:0 / / rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue",
    "90 36 7:3 /fs /var/lib/a\\040b/disk rw,nodev - ext4 /dev/loop3 rw",
    "",
  ].join("\n");
  expect(parseMountinfo(text)).toEqual([
    {
      mountPoint: "/",
      fsType: "ext3",
      source: "/dev/root",
      device: "98:0",
      options: ["rw", "noatime", "rw", "errors=continue"],
    },
    {
      mountPoint: "/var/lib/a b/disk",
      fsType: "ext4",
      source: "/dev/loop3",
      device: "7:3",
      options: ["rw", "nodev", "rw"],
    },
  ]);
});
