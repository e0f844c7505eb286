// Stands in for a host in a pod (outlive.test.ts): starts one program through cloche-sys, prints its pid, and waits.
// Arguments: the compiled cloche-sys, a file for the pid, a tag, a process of the node, a disk's image and
// mount point or nothing, and the cgroup trees that are left.
import { readFileSync } from "node:fs";
import { openApartFromPod } from "../../packages/host/src/sys/launch-place.ts";
import { Native } from "../../packages/host/src/sys/native.ts";

const [program = "", pidFile = "", tag = "", node = "", image = "", mountPoint = "", ...trees] =
  process.argv.slice(2);
const options = { nodePid: Number(node), ...(trees.length > 0 && { trees }) };
const native = new Native(program, await openApartFromPod(tag, options));
if (image !== "")
  await native.attach({ image, mountPoint, flags: 0, options: "errors=remount-ro", directIo: false });
const argv = ["sh", "-c", `setsid sleep 300 > /dev/null 2>&1 & echo $! > ${pidFile}`] as const;
const { exitCode } = await native.exec({ argv: [...argv], outlives: true });
if (exitCode !== 0) throw new Error(`the program was not started: ${exitCode}`);
console.log(readFileSync(pidFile, "utf8").trim());
process.stdin.resume();
