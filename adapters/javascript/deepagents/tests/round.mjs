// A round through the backend of Deep Agents; prints one line of JSON.
import { ClocheSandbox } from "../src/index.ts";

const backend = await ClocheSandbox.create({
  user: "user",
  initialFiles: { "/home/user/a.txt": "one\ntwo\n" },
});
const ran = await backend.execute("whoami; pwd; ls /nothing; exit 3");
await backend.write("/home/user/b.txt", "three");
const { matches } = await backend.grep("tw", "/home/user");
const [missing, directory, relative] = await backend.downloadFiles(["/none", "/etc", "none"]);
const [denied] = await backend.uploadFiles([["/etc/mine", new Uint8Array(1)]]);
await backend.close();
await backend.close();
console.log(
  JSON.stringify({
    ran: [ran.output.split("\n").slice(0, 2), ran.output.includes("/nothing"), ran.exitCode],
    matches: matches.map(({ path, line }) => `${path}:${line}`),
    errors: [missing.error, directory.error, relative.error, denied.error],
    isRunning: backend.isRunning,
  }),
);
