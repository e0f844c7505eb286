/**
 * The same operations on each runtime of one service, as one table with a column for each: gVisor and virtual machines, which the
 * column says are emulated or under KVM. Over HTTPS with auth, as a user meets them; no target: what must be fast has its own cell.
 */
import type { connect } from "@cloche/sdk/node";
import { startService } from "../tests/fixtures/service.ts";
import { clientOf } from "./client.ts";
import type { Cell } from "./runner.ts";
import { timed } from "./travel/shared.ts";

type Client = ReturnType<typeof connect>;
type Sandbox = Awaited<ReturnType<Client["create"]>>;

const MIB = 1024 * 1024;

/** What is done, and how long it takes on a sandbox of one runtime, in ms. Everything it makes it takes away again. */
const operations: Record<string, (sandbox: Sandbox, create: () => Promise<Sandbox>) => Promise<number>> = {
  "exec of true": (sandbox) => timed(() => ran(sandbox)),
  "create to first exec": async (_, create) => {
    let made: Sandbox | undefined;
    const tookMs = await timed(async () => ran((made = await create())));
    await made?.delete();
    return tookMs;
  },
  "1 MiB written": (sandbox) => timed(() => sandbox.files.write("/root/one", Buffer.alloc(MIB, "a"))),
  "1 MiB read": (sandbox) =>
    timed(async () => {
      if ((await sandbox.files.read("/root/one")).length !== MIB) throw new Error("a file came back cut");
    }),
  "store: durable set": (sandbox) => timed(() => sandbox.store.set("bench", { a: 1 })),
  "store: get": (sandbox) => timed(() => sandbox.store.get("bench")),
  "checkpoint, answered": async (sandbox) => {
    let id = "";
    const tookMs = await timed(async () => {
      id = (await sandbox.checkpoints.create({})).checkpoint_id;
    });
    await sandbox.checkpoints.wait(id, { timeout_secs: 300 });
    await sandbox.checkpoints.delete(id);
    return tookMs;
  },
  "restore in place to first exec": async (sandbox) => {
    const { checkpoint_id: id } = await sandbox.checkpoints.create({});
    const tookMs = await timed(async () => {
      await sandbox.restore(id);
      await ran(sandbox);
    });
    await sandbox.checkpoints.delete(id);
    return tookMs;
  },
  "live fork to first exec": async (sandbox) => {
    let clone: Sandbox | undefined;
    const tookMs = await timed(async () => ran((clone = await running(await sandbox.fork({})))));
    await clone?.delete();
    return tookMs;
  },
  suspend: async (sandbox) => {
    const tookMs = await timed(() => suspended(sandbox));
    await resumed(sandbox);
    return tookMs;
  },
  "resume to first exec": async (sandbox) => {
    await suspended(sandbox);
    return timed(() => resumed(sandbox));
  },
};

export async function runtimeCells(samples: number): Promise<{ cells: Cell[]; close(): Promise<void> }> {
  const service = await startService({ env: { CLOCHE_RUNTIME: "qemu" } });
  const client = await clientOf(service);
  const close = async (): Promise<void> => {
    await client.close();
    await service.destroy();
  };
  try {
    const how = service.status.emulated ? "emulated" : "KVM";
    const columns = [
      { name: "gVisor", runtime: "gvisor" },
      { name: `QEMU, ${how}`, runtime: "qemu" },
    ];
    const arms = await Promise.all(
      columns.map(async ({ name, runtime }) => {
        const create = async (): Promise<Sandbox> => running(await client.create({ runtime }));
        return { name, create, sandbox: await create() };
      }),
    );
    const cells = Object.entries(operations).map(([name, operation]) => ({
      name,
      samples,
      warmups: 1,
      arms: arms.map((arm) => ({ name: arm.name, run: () => operation(arm.sandbox, arm.create) })),
      targets: [],
    }));
    return { cells, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** A slow one is answered while it is still being made. */
async function running(sandbox: Sandbox): Promise<Sandbox> {
  await sandbox.waitFor("SANDBOX_STATE_RUNNING");
  return sandbox;
}

async function ran(sandbox: Sandbox): Promise<void> {
  if (!(await sandbox.exec(["true"])).ok) throw new Error("true failed");
}

async function suspended(sandbox: Sandbox): Promise<void> {
  await sandbox.suspend();
  await sandbox.waitFor("SANDBOX_STATE_SUSPENDED");
}

async function resumed(sandbox: Sandbox): Promise<void> {
  await sandbox.resume();
  await sandbox.waitFor("SANDBOX_STATE_RUNNING");
  await ran(sandbox);
}
