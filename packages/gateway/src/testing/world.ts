/** A database and a host that outlive gateways, and the conditions that must hold whenever no operation runs. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { silentLog } from "@cloche/base";
import type { SandboxState, TransitionTrigger } from "@cloche/protocol";
import { transitions } from "@cloche/protocol";
import { MachinePhase } from "@cloche/protocol/host";
import { type Database, openSqlite } from "../database/database.ts";
import { createGateway, type Gateway } from "../gateway.ts";
import type { Listener } from "../http/listener.ts";
import { FakeClock, quiet } from "./fake-clock.ts";
import { FakeHost } from "./fake-host.ts";
import { type Answer, postCall, testConfig, testSigningKey } from "./gateway-fixture.ts";
import { Mortal } from "./mortal.ts";

export class World {
  readonly clock = new FakeClock();
  readonly host = new FakeHost();
  readonly database: Database;
  gateway: Gateway;
  mortal: Mortal;
  #listener: Listener;
  #secret: string;
  #connections = new AbortController();

  private constructor(database: Database, running: Running, secret: string) {
    this.database = database;
    this.#secret = secret;
    ({ gateway: this.gateway, mortal: this.mortal, listener: this.#listener } = running);
  }

  /** `owner`: names the gateway, so that others may join. */
  static async open(owner = ""): Promise<World> {
    const clock = new FakeClock();
    const database = checkTransitions(await openSqlite(":memory:", clock, { isShared: owner !== "" }));
    const host = new FakeHost();
    host.nowMs = () => clock.nowMs();
    const running = await start(database, host, clock, owner);
    const team = await running.gateway.addTeam("testers");
    const { secret } = await running.gateway.createApiKey(team.id, "test");
    const world = new World(database, running, secret);
    Object.assign(world, { clock, host });
    await world.settle();
    return world;
  }

  /** Starts another gateway on the same database and host, which lives and dies by itself. */
  async join(owner: string): Promise<World> {
    const { clock, database, host } = this;
    const other = new World(database, await start(database, host, clock, owner), this.#secret);
    Object.assign(other, { clock, host });
    await other.settle();
    return other;
  }

  call(method: string, body: object = {}): Promise<Answer> {
    return postCall(this.#listener.port, method, body, {
      secret: this.#secret,
      signal: this.#connections.signal,
    });
  }

  /** The answer, or undefined when the process died before it gave one. */
  async callUnlessKilled(method: string, body: object = {}): Promise<Answer | undefined> {
    const answer = this.call(method, body).catch(() => undefined);
    const result = await Promise.race([answer, this.mortal.death.then(() => undefined)]);
    return this.mortal.isDead ? undefined : result;
  }

  /**
   * As callUnlessKilled, with time passing until there is an answer. Turns of the loop are no measure of how long a
   * thread that signs takes, so the bound is real time.
   */
  async callPassingTime(method: string, body: object = {}): Promise<Answer | undefined> {
    let result: { answer: Answer | undefined } | undefined;
    void this.callUnlessKilled(method, body).then((answer) => {
      result = { answer };
    });
    const giveUpAtMs = performance.now() + answerWithinMs;
    while (result === undefined) {
      assert.ok(performance.now() < giveUpAtMs, `${method} ${JSON.stringify(body)} was never answered`);
      await this.clock.advance(500);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    return result.answer;
  }

  /** Kills the gateway at any point (kill -9), and starts the next one. */
  async restart(): Promise<void> {
    await this.kill();
    ({
      gateway: this.gateway,
      mortal: this.mortal,
      listener: this.#listener,
    } = await start(this.database, this.host, this.clock));
  }

  /** Lets time pass until no operation is left and nothing is being compared. */
  async settle(): Promise<void> {
    for (let round = 0; round < 60 && !this.mortal.isDead; round += 1) {
      let isSettled = false;
      void this.gateway.settled().then(() => {
        isSettled = true;
      });
      await quiet();
      if (isSettled && (await this.database.operations.all()).length === 0) return await quiet();
      // Let retries that wait become due.
      await this.clock.advance(round < 40 ? 500 : 31_000);
    }
  }

  async close(): Promise<void> {
    await this.kill();
    await this.database.close();
  }

  /** Kills the gateway for good. */
  async kill(): Promise<void> {
    this.mortal.kill();
    // Its clients see their connections end.
    this.#connections.abort();
    this.#connections = new AbortController();
    await this.gateway.close();
  }

  /** Checks that every record is true of its machine, and that nothing is left over. */
  async checkTruth(): Promise<void> {
    assert.deepEqual(await this.database.operations.all(), []);
    const records = await this.database.sandboxes.all();
    for (const { id, state, errorMessage, firstRanAtMs } of records) {
      const phase = this.host.phase(id);
      const seen = `${state} with machine ${phase === undefined ? "absent" : MachinePhase[phase]}`;
      assert.ok(truths.includes(seen), `${seen} is no truth`);
      if (state === "SANDBOX_STATE_ERROR") assert.notEqual(errorMessage, "");
      if (state === "SANDBOX_STATE_RUNNING" || state === "SANDBOX_STATE_SUSPENDED")
        assert.notEqual(firstRanAtMs, null);
    }
    const known = new Set(records.map(({ id }) => id));
    assert.deepEqual(
      [...this.host.machines.keys()].filter((id) => !known.has(id)),
      [],
    );
  }
}

/** States of record and machine that may meet once no operation runs. */
const truths = [
  "SANDBOX_STATE_RUNNING with machine RUNNING",
  "SANDBOX_STATE_SUSPENDED with machine SUSPENDED",
  // A cold start failed: the disk is kept, and a resume tries again.
  "SANDBOX_STATE_SUSPENDED with machine STOPPED",
  // Reported by the next resume.
  "SANDBOX_STATE_SUSPENDED with machine FAILED",
  "SANDBOX_STATE_SUSPENDED with machine absent",
  "SANDBOX_STATE_ERROR with machine FAILED",
  "SANDBOX_STATE_ERROR with machine STOPPED",
  "SANDBOX_STATE_ERROR with machine absent",
];

const answerWithinMs = 20_000;

interface Running {
  gateway: Gateway;
  mortal: Mortal;
  listener: Listener;
}

async function start(database: Database, host: FakeHost, clock: FakeClock, owner = ""): Promise<Running> {
  const mortal = new Mortal();
  const gateway = createGateway({
    database: mortal.database(database),
    host: mortal.host(host.client),
    signingKeys: [testSigningKey()],
    config: testConfig,
    clock,
    log: silentLog,
    randomBytes,
    owner,
  });
  await gateway.start();
  const listener = await gateway.listen("127.0.0.1", 0);
  await quiet();
  return { gateway, mortal, listener };
}

/** Fails the test when a write changes a state in a way that no path of the transition table allows. */
function checkTransitions(database: Database): Database {
  const { sandboxes } = database;
  const changeAll = sandboxes.changeAll.bind(sandboxes);
  sandboxes.changeAll = (changes, ...rest) => {
    for (const { read, patch } of changes) {
      if (patch.state !== undefined && patch.state !== read.state && !canReach(read.state, patch.state))
        throw new Error(`${read.state} was to become ${patch.state}`);
    }
    return changeAll(changes, ...rest);
  };
  return database;
}

function canReach(from: SandboxState, to: SandboxState): boolean {
  const seen = new Set<SandboxState>();
  const open = [from];
  for (let state = open.pop(); state !== undefined; state = open.pop()) {
    for (const [trigger, next] of Object.entries(transitions[state]) as [TransitionTrigger, SandboxState][]) {
      if (next === to) return true;
      // A path may end with a delete, but does not go on from there.
      if (trigger !== "delete" && !seen.has(next)) open.push(next);
      seen.add(next);
    }
  }
  return false;
}
