import { silentLog } from "@cloche/base";
import { HostRegistryService, HostState } from "@cloche/protocol/host-registry";
import { Code, createClient, createRouterTransport } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Database, openSqlite } from "../database/database.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { HostDirectory } from "./host-directory.ts";
import { registryService } from "./registry-service.ts";

let clock: FakeClock;
let db: Database;
let directory: HostDirectory;
let lost: string[];

beforeEach(async () => {
  clock = new FakeClock();
  db = await openSqlite(":memory:", clock);
  directory = new HostDirectory(db.hosts, clock, silentLog);
  lost = [];
  directory.onLost = ({ id, generation }) => void lost.push(`${id} ${generation}`);
});
afterEach(async () => {
  await directory.close();
  await db.close();
});

const aHost = (id: string) => ({
  id,
  address: `${id}.example:7090`,
  cpuClass: "",
  capacityMemoryMb: 1,
  version: "0.1.0",
  runtimes: ["gvisor"],
});
const register = (ids: string[], leaseMs = 600_000) =>
  Promise.all(ids.map((id) => db.hosts.register(aHost(id), leaseMs)));
const longOverMs = -6_000;

describe("a lost host", () => {
  it("is declared by who has watched for 20 s", async () => {
    await register(["a", "b"]);
    await register(["gone"], longOverMs);
    directory.start();
    await clock.advance(19_999);
    expect(lost).toEqual([]);
    await clock.advance(1);
    expect(lost).toEqual(["gone 1"]);
  });

  it("is not declared before 20 s are over since the database was away, or most leases had run out", async () => {
    await register(["a", "b"]);
    await register(["gone"], longOverMs);
    const leases = db.hosts.leases.bind(db.hosts);
    directory.start();
    await clock.advance(15_000);
    db.hosts.leases = () => Promise.reject(new Error("the database is away"));
    await clock.advance(5_000);
    db.hosts.leases = leases;
    await clock.advance(20_000);
    expect(lost).toEqual([]);
    db.hosts.leases = async () => ({ count: 3, expired: 2 });
    await clock.advance(5_000);
    db.hosts.leases = leases;
    await clock.advance(20_000);
    expect(lost).toEqual([]);
    await clock.advance(5_000);
    expect(lost).toEqual(["gone 1"]);
  });

  it("is not declared before 20 s are over since this gateway stood still", async () => {
    await register(["a", "b"]);
    directory.start();
    await clock.advance(60_000);
    await register(["gone"], longOverMs);
    await clock.jump(30_000);
    await clock.advance(15_000);
    expect(lost).toEqual([]);
    await clock.advance(5_000);
    expect(lost).toEqual(["gone 1"]);
  });
});

describe("the registry", () => {
  const client = (caller: string | undefined) =>
    createClient(
      HostRegistryService,
      createRouterTransport(({ service }) =>
        service(
          HostRegistryService,
          registryService(directory, () => caller),
        ),
      ),
    );
  const request = {
    hostId: "a",
    address: "a.example:7090",
    capacityMemoryMb: 1_024n,
    cpuClass: "x64-genuineintel-6-143-1f0c93ab.gvisor-20260905.0",
    version: "0.1.0",
    runtimes: ["gvisor", "qemu"],
  };

  it("gives a host its lease, and tells it that it drains", async () => {
    const first = await client("a").registerHost(request);
    expect(first).toMatchObject({
      generation: 1n,
      validMs: 15_000,
      renewEveryMs: 5_000,
      state: HostState.OPEN,
    });
    await directory.setState("a", "draining");
    const again = { hostId: "a", generation: 1n };
    expect(await client("a").renewHost(again)).toMatchObject({ state: HostState.DRAINING });
    await client("a").registerHost(request);
    await expect(client("a").renewHost(again)).rejects.toMatchObject({ code: Code.FailedPrecondition });
    expect(await directory.all()).toMatchObject([{ id: "a", generation: 2, capacityMemoryMb: 1_024 }]);
    await expect(directory.setState("b", "open")).rejects.toMatchObject({ code: "not_found" });
  });

  it("does not take a host for lost that said it leaves, for as long as it said", async () => {
    await register(["a", "b"]);
    const leave = (awayMs: number) => client("c").leaveHost({ hostId: "c", generation: 1n, awayMs });
    await client("c").registerHost({ ...request, hostId: "c" });
    await expect(leave(900_001)).rejects.toMatchObject({ code: Code.InvalidArgument });
    await leave(300_000);
    const { leaseUntilMs } = (await directory.all())[2] ?? { leaseUntilMs: 0 };
    expect(leaseUntilMs - clock.nowMs()).toBeGreaterThan(200_000);
  });

  it("takes the word of a host for itself only", async () => {
    await client("a").registerHost(request);
    for (const caller of ["b", undefined]) {
      await expect(client(caller).registerHost(request)).rejects.toMatchObject({
        code: Code.PermissionDenied,
      });
      const renewal = client(caller).renewHost({ hostId: "a", generation: 1n });
      await expect(renewal).rejects.toMatchObject({ code: Code.PermissionDenied });
    }
    expect(await directory.all()).toMatchObject([{ generation: 1 }]);
  });

  // CLOCHE_RUNSC may name any runsc with a release in its version (packages/artifacts/src/gvisor/runsc-version.ts).
  it.each([
    "20260905.0",
    "release-20260905.0",
    "0.0~20260905.0-1",
    "release-20260905.0-53-g0123456789ab-dirty",
  ])("takes a host whose own runsc calls itself %s", async (version) => {
    const cpuClass = `x64-genuineintel-6-143-1f0c93ab.gvisor-${version}`;
    await client("a").registerHost({ ...request, cpuClass });
    expect(await directory.all()).toMatchObject([{ cpuClass }]);
  });

  // Every gateway reads and uses all rows: one that cannot be used would keep it from the hosts behind.
  it.each([
    { address: "" },
    { address: "nonsense" },
    { address: `${"a".repeat(1_000)}:1` },
    { version: "v".repeat(1_000_000) },
    { cpuClass: "c".repeat(1_000_000) },
    { cpuClass: "a\u001b[2Jb" },
    { runtimes: Array.from({ length: 100_000 }, () => "gvisor") },
    { capacityMemoryMb: 2n ** 64n - 1n },
  ])("refuses a host that says of itself what no host does", async (said) => {
    const wrong = client("a").registerHost({ ...request, ...said });
    await expect(wrong).rejects.toMatchObject({ code: Code.InvalidArgument });
    expect(await directory.all()).toEqual([]);
  });
});
