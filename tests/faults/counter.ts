// A process whose memory tells it from any other run of it: proof that a machine was never interrupted, or came back as it was.
import type { TestSandbox } from "../conformance/session.ts";
import { type Client, eventually } from "../fixtures/client.ts";

const program = [
  "import os, time, uuid",
  "mine = uuid.uuid4().hex",
  "count = 0",
  "while True:",
  "    count += 1",
  "    open('/root/count.new', 'w').write(f'{count} {mine}')",
  "    os.rename('/root/count.new', '/root/count')",
  "    time.sleep(0.05)",
].join("\n");

export interface Count {
  count: number;
  /** Made anew by each start of the program. */
  mine: string;
}

/** Runs the counter as the service `counter`. */
export async function startCounter(client: Client, sandbox: TestSandbox): Promise<Count> {
  await client.call(sandbox, "POST", "/v1/files?path=/root/counter.py", { body: Buffer.from(program) });
  const definition = { cmd: "python3", args: ["/root/counter.py"], working_dir: "/root" };
  await client.call(sandbox, "PUT", "/v1/services/counter", { json: definition });
  const started = await client.call(sandbox, "POST", "/v1/services/counter/start");
  if (started.status !== 200) throw new Error(started.body.toString());
  return await countIn(client, sandbox);
}

export async function countIn(client: Client, sandbox: TestSandbox): Promise<Count> {
  const { stdout } = await eventually(
    () => client.exec(sandbox, ["cat", "/root/count"]),
    (seen) => seen.stdout.includes(" "),
  );
  const [count = "", mine = ""] = stdout.split(" ");
  return { count: Number(count), mine };
}

/** Whether the counter counts now. What it finds first may be of an earlier run of it, which had come further. */
export async function goesOn(client: Client, sandbox: TestSandbox): Promise<boolean> {
  const first = await countIn(client, sandbox);
  const isLater = ({ count, mine }: Count): boolean => count > first.count || mine !== first.mine;
  return isLater(await eventually(() => countIn(client, sandbox), isLater));
}
