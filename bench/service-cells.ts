/** What the supervisor costs: time of a chain of services over their own health delays. */
import type { Lab } from "./lab.ts";
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
    samples,
    warmups: 1,
    arms: [
      { name: "Cloche, HTTPS + auth", run: start },
      { name: "sum of their own health delays", run: bare },
    ],
    targets: [
      {
        arm: "Cloche, HTTPS + auth",
        against: "sum of their own health delays",
        atMost: 2,
      },
    ],
  };
  return { cell, close: () => sandbox.delete() };
}
