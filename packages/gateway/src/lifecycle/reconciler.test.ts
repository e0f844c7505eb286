import { Code } from "@connectrpc/connect";
import { MachinePhase } from "@cloche/protocol/host";
import type { SandboxState } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { quiet } from "../testing/fake-clock.ts";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const create = async (body: object = {}): Promise<string> =>
  (await f.call("CreateSandbox", body)).body.sandbox.id;
const get = async (id: string) => (await f.call("GetSandbox", { id })).body.sandbox;
const stateOf = async (id: string): Promise<string> => {
  const answer = await f.call("GetSandbox", { id });
  return answer.status === 200 ? answer.body.sandbox.state : answer.body.code;
};
const suspended = async (): Promise<string> => {
  const id = await create();
  await f.call("SuspendSandbox", { id });
  await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
  return id;
};
/** Writes a state without the gateway's knowledge, as a crash at a bad moment or an operator could leave it. */
const force = async (id: string, state: SandboxState): Promise<void> => {
  const record = await f.database.sandboxes.get(id);
  if (record === undefined) throw new Error("no record");
  await f.database.sandboxes.change(record, { state }, f.clock.nowMs());
};

describe("while it runs", () => {
  it("a machine that fails makes its sandbox ERROR with the reason", async () => {
    const id = await create();
    f.host.crash(id, "out of memory");
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_ERROR");
    expect(await get(id)).toMatchObject({ error_message: "out of memory" });
    await f.call("DeleteSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("not_found");
  });

  it("a machine that stopped is started again from its disk", async () => {
    const id = await create();
    f.host.set(id, MachinePhase.STOPPED);
    await expect.poll(() => f.host.phase(id)).toBe(MachinePhase.RUNNING);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    expect(f.host.calls.filter((one) => one === `createMachine ${id}`)).toHaveLength(2);
  });

  it("a machine that its host started again says so, once", async () => {
    const id = await create();
    const say = (words: string): void => {
      const machine = f.host.machines.get(id);
      if (machine === undefined) throw new Error("no machine");
      machine.errorMessage = words;
      f.host.set(id, MachinePhase.RUNNING);
    };
    const message = async (): Promise<string> => (await get(id)).error_message;
    say("started again from its disk: out of memory");
    await expect.poll(message).toBe("started again from its disk: out of memory");
    const record = await f.database.sandboxes.get(id);
    if (record === undefined) throw new Error("no record");
    await f.database.sandboxes.change(record, { errorMessage: "suspend did not complete" }, f.clock.nowMs());
    say("started again from its disk: out of memory");
    await quiet();
    expect(await message()).toBe("suspend did not complete");
    say("started again from its disk: killed");
    await expect.poll(message).toBe("started again from its disk: killed");
    await f.restart();
    say("started again from its disk: killed");
    await quiet();
    const audit = await f.database.audit.list({ teamId: f.teamId, subject: id, limit: 10 });
    const told = audit.filter(({ action }) => action === "sandbox.restart");
    expect(told.map(({ actor, detail }) => [actor, detail])).toEqual([
      ["system:reconciler", "started again from its disk: killed"],
      ["system:reconciler", "started again from its disk: out of memory"],
    ]);
  });

  it("a machine that its host started again says so once more after its sandbox was suspended and resumed", async () => {
    const id = await create();
    const words = "started again from its disk: out of memory";
    const say = (): void => void f.host.set(id, MachinePhase.RUNNING, { errorMessage: words });
    const message = async (): Promise<string> => (await get(id)).error_message;
    say();
    await expect.poll(message).toBe(words);
    // Its suspension ends the message, without an event of its own.
    const machine = f.host.machines.get(id);
    if (machine === undefined) throw new Error("no machine");
    machine.errorMessage = "";
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    expect(await message()).toBe("");
    say();
    await expect.poll(message).toBe(words);
  });

  it("a machine that disappears without an event is found out by the regular comparison", async () => {
    const id = await create();
    f.host.lose(id);
    await f.clock.advance(60_000);
    expect(await get(id)).toMatchObject({
      state: "SANDBOX_STATE_ERROR",
      error_message: "its machine is gone from its host: removed there, or its disk was lost",
    });
  });

  it("a machine that is left of a deleted sandbox is destroyed", async () => {
    const id = await create();
    await f.call("DeleteSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("not_found");
    f.host.add({ sandboxId: id });
    await expect.poll(() => f.host.machines.size).toBe(0);
  });

  it("an idle machine is suspended where the sandbox says so, and woken by the edge where it says so", async () => {
    const idle = await create({ idle_suspend_seconds: 60 });
    const busy = await create();
    f.host.reportIdle(idle);
    f.host.reportIdle(busy);
    await expect.poll(() => stateOf(idle)).toBe("SANDBOX_STATE_SUSPENDED");
    await quiet();
    expect(await stateOf(busy)).toBe("SANDBOX_STATE_RUNNING");
    const audit = await f.database.audit.list({ teamId: f.teamId, subject: idle, limit: 10 });
    expect(audit.find((one) => one.action === "sandbox.suspend")?.actor).toBe("system:idle");
  });

  it("a stale event does not undo what happened since", async () => {
    const id = await create();
    const machine = f.host.machines.get(id);
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    if (machine !== undefined) f.host.machines.set(id, { ...machine, phase: MachinePhase.SUSPENDED });
    f.host.breakStreams();
    await f.clock.advance(1_000);
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
  });
});

describe("after a restart", () => {
  it("leaves running and suspended sandboxes as they are", async () => {
    const a = await create();
    const b = await suspended();
    const before = [await get(a), await get(b)];
    f.host.calls.length = 0;
    await f.restart();
    await f.gateway.settled();
    await quiet();
    expect([await get(a), await get(b)]).toEqual(before);
    expect(f.host.calls.filter((one) => /^(create|suspend|resume|destroy|fork)Machine/.test(one))).toEqual(
      [],
    );
  });

  it("gives the host the public keys again", async () => {
    f.host.keys = { issuer: "", kids: [] };
    await f.restart();
    await expect.poll(() => f.host.keys).toEqual({ issuer: "cloche-test", kids: ["test-key"] });
  });

  it("after a reboot of the host: RUNNING ones start cold, SUSPENDED ones stay", async () => {
    const a = await create();
    const b = await suspended();
    await f.gateway.close();
    f.host.reboot();
    f.host.calls.length = 0;
    await f.restart();
    await expect.poll(() => f.host.phase(a)).toBe(MachinePhase.RUNNING);
    await expect.poll(() => stateOf(a)).toBe("SANDBOX_STATE_RUNNING");
    expect(f.host.calls).toContain(`createMachine ${a}`);
    expect([await stateOf(b), f.host.phase(b)]).toEqual(["SANDBOX_STATE_SUSPENDED", MachinePhase.SUSPENDED]);
  });

  it("a cold start that fails leaves the sandbox SUSPENDED with its reason, and a resume tries again", async () => {
    const id = await create();
    f.host.fault("createMachine", "before", Code.ResourceExhausted, 1, "no memory left");
    f.host.reboot();
    await f.clock.advance(1_000);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect((await get(id)).error_message).toBe("resume did not complete: no memory left");
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it("a resume that the host could not undo leaves the sandbox SUSPENDED, not ERROR: its image is there", async () => {
    const id = await suspended();
    f.host.fault("resumeMachine", "before", Code.Internal, 1, "resume failed and could not be undone");
    f.host.set(id, MachinePhase.FAILED);
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect((await get(id)).error_message).toMatch(/^resume did not complete: .*could not be undone/);
    // The host has cleaned the machine up since.
    f.host.set(id, MachinePhase.SUSPENDED);
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it("what the service suspended when it stopped runs again", async () => {
    const id = await create();
    await f.gateway.close();
    f.host.set(id, MachinePhase.SUSPENDED);
    await f.restart();
    await expect.poll(() => f.host.phase(id)).toBe(MachinePhase.RUNNING);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it("a machine that runs although its sandbox is SUSPENDED is accepted as RUNNING", async () => {
    const id = await suspended();
    f.host.set(id, MachinePhase.RUNNING);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it.each<[SandboxState, string]>([
    ["SANDBOX_STATE_CREATING", "SANDBOX_STATE_RUNNING"],
    ["SANDBOX_STATE_SUSPENDING", "SANDBOX_STATE_SUSPENDED"],
    ["SANDBOX_STATE_RESUMING", "SANDBOX_STATE_RUNNING"],
    ["SANDBOX_STATE_DELETING", "not_found"],
  ])("a sandbox in %s without an operation gets one", async (state, then) => {
    const id = state === "SANDBOX_STATE_RESUMING" ? await suspended() : await create();
    await f.gateway.close();
    await force(id, state);
    await f.restart();
    await expect.poll(() => stateOf(id)).toBe(then);
  });
});

describe("while the host is out of reach", () => {
  it("operations wait and go on when it is back", async () => {
    const id = await create();
    f.host.fault("suspendMachine", "before", Code.Unavailable, 10);
    f.host.fault("getMachine", "before", Code.Unavailable, 10);
    await f.call("SuspendSandbox", { id });
    await f.clock.advance(1_000);
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDING");
    f.host.clearFaults();
    await f.clock.advance(60_000);
    expect(["SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_RUNNING"]).toContain(await stateOf(id));
  });
});
