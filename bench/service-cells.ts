/** What the supervisor costs: time of a chain of services over their own health delays, memory of an agent that supervises. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import type { Lab } from "./lab.ts";
import { pssMb } from "./process-figures.ts";
import type { Cell } from "./runner.ts";

const links = 10;
const firstPort = 9_100;

/** A server that takes a while to accept, as real ones do. */
const server = (port: number): string =>
  `import socket,time; time.sleep(0.05); s=socket.create_server(('127.0.0.1',${port})); time.sleep(100000)`;

/** The same servers one after another without a supervisor, each until its port accepts; the sum of their delays in ms. */
const bareChain = `import os,socket,sys,time
total=0
for port in range(${firstPort},${firstPort + links}):
    began=time.perf_counter()
    pid=os.posix_spawn('/usr/bin/python3',['python3','-S','-c',sys.argv[1].replace('PORT',str(port))],os.environ)
    while True:
        try: socket.create_connection(('127.0.0.1',port)).close(); break
        except OSError: time.sleep(0.001)
    total+=time.perf_counter()-began
    os.kill(pid,9); os.waitpid(pid,0)
print(total*1000)`;

export async function chainCell(lab: Lab, samples: number): Promise<{ cell: Cell; close(): Promise<void> }> {
  const sandbox = await lab.cloche.create({ name: "bench-chain" });
  const names = Array.from({ length: links }, (_, link) => `link-${link}`);
  for (const [link, name] of names.entries())
    await sandbox.services.put(name, {
      cmd: "/usr/bin/python3",
      args: ["-S", "-c", server(firstPort + link)],
      health_port: firstPort + link,
      needs: link === 0 ? [] : [names[link - 1] ?? ""],
    });
  const start = async (): Promise<number> => {
    const beganMs = performance.now();
    await sandbox.services.start(names.at(-1) ?? "");
    const tookMs = performance.now() - beganMs;
    const services = await sandbox.services.list();
    for (const name of names) await sandbox.services.stop(name);
    if (!services.every(({ status }) => status === "running")) throw new Error("a link does not run");
    return tookMs;
  };
  const bare = async (): Promise<number> => {
    const template = server(0).replace(",0)", ",PORT)");
    const { stdout, stderr, ok } = await sandbox.exec(["python3", "-c", bareChain, template]);
    if (!ok) throw new Error(stderr);
    return Number(stdout);
  };
  const cell: Cell = {
    name: `start of a chain of ${links} services, each needing the one before`,
    samples: Math.min(samples, 20),
    warmups: 1,
    arms: [
      { name: "Cloche, HTTPS + auth", run: start },
      { name: "sum of their own health delays", run: bare },
    ],
    targets: [
      {
        arm: "Cloche, HTTPS + auth",
        against: "sum of their own health delays",
        atMost: 30 * links,
        unit: "ms-more",
        from: "issue 3",
      },
    ],
  };
  return { cell, close: () => sandbox.delete() };
}

/** The figures are MiB of PSS, on plain Linux, where processes can be told apart. */
export async function supervisorMemoryCell(
  lab: Lab,
  samples: number,
): Promise<{ cell: Cell; close(): Promise<void> }> {
  const children: ChildProcess[] = [];
  const started = async (...words: string[]): Promise<number> => {
    const node = [process.execPath, "--disable-warning=ExperimentalWarning"];
    const child = spawn("unshare", ["-m", ...node, ...words], { stdio: ["pipe", "pipe", "inherit"] });
    children.push(child);
    const over = new AbortController();
    const gone = once(child, "exit", { signal: over.signal }).then(() => {
      throw new Error("the process ended before it was ready");
    });
    gone.catch(() => undefined);
    const said = (await Promise.race([once(child.stdout, "data"), gone])) as [Buffer];
    over.abort();
    return Number(String(said[0]));
  };
  const program = fileURLToPath(new URL("./idle-agent.ts", import.meta.url));
  const close = async (): Promise<void> => {
    for (const child of children) {
      const ended = once(child, "exit");
      child.stdin?.end();
      if (child.exitCode === null) await ended;
    }
  };
  try {
    const bare = "console.log(process.pid); process.stdin.on('end', () => process.exit()).resume()";
    const pids: [string, number][] = [
      ["Cloche agent, 10 idle services", await started(program, "10", lab.runsc.userRoot)],
      ["Cloche agent, no service", await started(program, "0", lab.runsc.userRoot)],
      ["bare node", await started("-e", bare)],
    ];
    const cell: Cell = {
      name: "memory of an idle supervisor, MiB of PSS",
      samples: Math.min(samples, 20),
      warmups: 0,
      arms: pids.map(([name, pid]) => ({ name, run: async () => pssMb([pid]) })),
      targets: [
        { arm: "Cloche agent, no service", against: "bare node", atMost: 1.5, from: "own" },
        {
          arm: "Cloche agent, 10 idle services",
          against: "Cloche agent, no service",
          atMost: 1.1,
          from: "own",
        },
      ],
    };
    return { cell, close };
  } catch (error) {
    await close();
    throw error;
  }
}
