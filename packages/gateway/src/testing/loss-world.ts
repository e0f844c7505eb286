/** A cluster whose hosts are lost and come back, and the conditions that must hold whenever no operation runs. */
import assert from "node:assert/strict";
import { MachinePhase } from "@cloche/protocol/host";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { FakeHost } from "./fake-host.ts";
import { quiet } from "./fake-clock.ts";
import { type FleetGateway, FleetWorld } from "./fleet-world.ts";
import { Mortal } from "./mortal.ts";

export const hostIds = ["h-1", "h-2", "h-3"] as const;

export class LossWorld {
  readonly fleet: FleetWorld;
  mortal = new Mortal();
  gateway: FleetGateway;
  /** Called while time passes. */
  onRound: () => void = () => undefined;

  private constructor(fleet: FleetWorld, gateway: FleetGateway) {
    this.fleet = fleet;
    this.gateway = gateway;
  }

  /** Opens a world of three hosts that put suspended machines into storage, and a gateway. */
  static async open(): Promise<LossWorld> {
    const fleet = await FleetWorld.open(hostIds);
    for (const host of fleet.hosts.values()) host.stores = true;
    const mortal = new Mortal();
    const world = new LossWorld(fleet, await fleet.start("a", {}, mortal));
    world.mortal = mortal;
    return world;
  }

  /** Ends the gateway for good and starts another one. */
  async replaceGateway(owner: string): Promise<void> {
    await this.gateway.kill();
    this.mortal = new Mortal();
    this.gateway = await this.fleet.start(owner, {}, this.mortal);
  }

  async record(id: string): Promise<SandboxRecord> {
    const found = await this.fleet.database.sandboxes.get(id);
    assert.ok(found !== undefined, `there is no sandbox ${id}`);
    return found;
  }

  async create(body: object = {}): Promise<string> {
    const answer = await this.gateway.call("CreateSandbox", body);
    assert.equal(answer.status, 200);
    return answer.body.sandbox.id;
  }

  async suspend(id: string): Promise<void> {
    assert.equal((await this.gateway.call("SuspendSandbox", { id })).status, 200);
    await this.settle();
  }

  async sandbox(id: string) {
    return (await this.gateway.call("GetSandbox", { id })).body.sandbox;
  }

  host(id: string): FakeHost {
    return this.fleet.host(id);
  }

  async hostOf(id: string): Promise<FakeHost> {
    return this.host((await this.record(id)).hostId);
  }

  async memory(id: string): Promise<string | undefined> {
    return (await this.hostOf(id)).memories.get(id);
  }

  /** Loses the host of the sandbox and returns the host's id. */
  async lose(id: string): Promise<string> {
    const { hostId } = await this.record(id);
    await this.fleet.lose(hostId);
    return hostId;
  }

  /** Brings a lost host back; its machines are frozen until they are admitted. */
  async comeBack(hostId: string): Promise<void> {
    await this.fleet.register(hostId);
    await this.fleet.clock.advance(12_000);
    await this.settle();
  }

  /** Lets time pass until no operation runs or the gateway is dead. Two copies of a machine must never run at once. */
  async settle(rounds = 60, calmRounds = 3): Promise<void> {
    const { clock, database } = this.fleet;
    for (let round = 0, calm = 0; round < rounds && calm < calmRounds && !this.mortal.isDead; round += 1) {
      let isSettled = false;
      void this.gateway.gateway.settled().then(() => {
        isSettled = true;
      });
      await quiet();
      this.checkCopies();
      this.onRound();
      const isCalm = isSettled && (await database.operations.all()).length === 0;
      calm = isCalm ? calm + 1 : 0;
      await clock.advance(round < 40 ? 1_000 : 16_000);
    }
  }

  checkCopies(): void {
    const running = [...this.fleet.hosts.values()].flatMap((host) => host.running());
    assert.deepEqual(running.toSorted(), [...new Set(running)].toSorted(), "two copies of a machine run");
  }

  /** Checks that every record of a reachable host is true of its machine, and that no host has machines of others. */
  async checkTruth(): Promise<void> {
    this.checkCopies();
    const { database, hosts } = this.fleet;
    assert.deepEqual(await database.operations.all(), []);
    const records = new Map((await database.sandboxes.all()).map((one) => [one.id, one]));
    for (const { id, hostId, state, errorMessage } of records.values()) {
      if (state === "SANDBOX_STATE_ERROR") assert.notEqual(errorMessage, "");
      const host = this.host(hostId);
      if (host.isCutOff) continue;
      const phase = host.phase(id);
      const seen = `${state} with machine ${phase === undefined ? "absent" : MachinePhase[phase]}`;
      assert.ok(truths.includes(seen), `${seen} is no truth`);
    }
    for (const [hostId, host] of hosts)
      for (const id of host.isCutOff ? [] : host.machines.keys())
        assert.equal(records.get(id)?.hostId, hostId, `${hostId} has a copy of ${id}`);
    for (const row of await database.hosts.all()) {
      const taking = [...records.values()].filter((one) => one.hostId === row.id && takes(one));
      const takenMb = taking.reduce((sum, one) => sum + one.memoryMb, 0);
      assert.equal(row.reservedMemoryMb, takenMb, `what is reserved on ${row.id}`);
    }
  }

  async close(): Promise<void> {
    await this.gateway.kill();
    await this.fleet.close();
  }
}

const takes = ({ state }: SandboxRecord): boolean =>
  state === "SANDBOX_STATE_RUNNING" || state.endsWith("ING");

const truths = [
  "SANDBOX_STATE_RUNNING with machine RUNNING",
  "SANDBOX_STATE_SUSPENDED with machine SUSPENDED",
  // The image is in storage.
  "SANDBOX_STATE_SUSPENDED with machine absent",
  "SANDBOX_STATE_ERROR with machine absent",
];
