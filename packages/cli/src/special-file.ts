/** What the data plane does not know of a file in a sandbox is asked of the sandbox's own programs. */
import type { Sandbox } from "@cloche/sdk";

/** What is shown of a program's report. */
const outputCharacters = 2_000;

interface Calls {
  signal: AbortSignal;
  asUser: string | undefined;
}

const ofExec = ({ signal, asUser }: Calls): { signal: AbortSignal; user?: string } => ({
  signal,
  ...(asUser !== undefined && { user: asUser }),
});

/** Whether the path names a device or a FIFO, also behind links. The data plane refuses to write those. */
export async function isDevice(sandbox: Sandbox, path: string, calls: Calls): Promise<boolean> {
  const script = '[ -b "$1" ] || [ -c "$1" ] || [ -p "$1" ]';
  const { exit_code: code } = await sandbox.exec(["sh", "-c", script, "sh", path], ofExec(calls));
  return code === 0;
}

/** Writes into what is there, as `cat > path` does: a FIFO waits for its reader. */
export async function writeInto(
  sandbox: Sandbox,
  path: string,
  content: AsyncIterable<Uint8Array>,
  calls: Calls,
): Promise<void> {
  const command = ["sh", "-c", 'exec cat > "$1"', "sh", path];
  let output = "";
  for await (const event of sandbox.execStreamBytes(command, { ...ofExec(calls), stdin: content })) {
    if (event.type !== "exit")
      output = (output + Buffer.from(event.data).toString()).slice(0, outputCharacters);
    else if (event.exit_code !== 0)
      throw new Error(`cannot write into ${path}: ${output.trim() || "it was killed"}`);
  }
}

/** Numbers of the owner and the group, which may have names only in the sandbox. */
export async function ownerNumbers(
  sandbox: Sandbox,
  path: string,
  calls: Calls,
): Promise<[uid: number, gid: number]> {
  const { stdout, stderr } = await sandbox.exec(["stat", "-L", "-c", "%u %g", "--", path], ofExec(calls));
  const [, uid, gid] = /^(\d+) (\d+)\n$/.exec(stdout) ?? [];
  if (uid === undefined || gid === undefined) throw new Error(`no owner of ${path}: ${stderr.trim()}`);
  return [Number(uid), Number(gid)];
}
