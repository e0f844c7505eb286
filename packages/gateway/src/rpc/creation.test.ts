import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { defaults } from "@cloche/protocol";
import { Code } from "@connectrpc/connect";
import { quiet } from "../testing/fake-clock.ts";
import { type Answer, type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
beforeEach(async () => {
  f = await openFixture();
});
afterEach(() => f.close());

const create = async (body: object = {}): Promise<Answer["body"]> => {
  const answer = await f.call("CreateSandbox", body);
  expect(answer).toMatchObject({ status: 200 });
  return answer.body.sandbox;
};
const stateOf = async (id: string): Promise<string> => {
  const answer = await f.call("GetSandbox", { id });
  return answer.status === 200 ? answer.body.sandbox.state : answer.body.code;
};
const none = "sbx-00000000000000000000";

describe("CreateSandbox", () => {
  it("generates a name when it is omitted, empty or null", async () => {
    for (const body of [{}, { name: "" }, { name: null }]) {
      expect((await create(body)).name).toMatch(/^[a-z]+-[a-z]+-\d{4}$/);
    }
  });

  describe("of machines made ahead", () => {
    const [a, b] = [
      { sandboxId: "sbx-aaaaaaaaaaaaaaaaaaaa", name: "calm-ant-0001" },
      { sandboxId: "sbx-bbbbbbbbbbbbbbbbbbbb", name: "bold-bee-0002" },
    ];
    const known = [a.sandboxId, b.sandboxId];
    /** Offers machines on the host's stream, and waits until they have arrived. */
    const offered = async (ready: (typeof a)[]): Promise<void> => {
      f.host.offer(ready);
      await quiet();
    };

    it("takes one over with its id and name, each for one sandbox only", async () => {
      await offered([a, b]);
      const made = await Promise.all([create(), create(), create()]);
      expect(made.filter(({ id }) => known.includes(id))).toHaveLength(2);
      expect(new Set(made.map(({ id }) => id)).size).toBe(3);
      for (const one of [a, b])
        expect(made.find(({ id }) => id === one.sandboxId)).toMatchObject({ name: one.name });
      // The host's stream still offers the machines that were taken.
      await offered([a, b]);
      expect(known).not.toContain((await create()).id);
    });

    it("keeps the name that was asked for, and what it gives up is there for the next", async () => {
      await offered([a]);
      f.host.fault("createMachine", "before", Code.ResourceExhausted);
      expect((await f.call("CreateSandbox")).status).toBe(429);
      expect(await create({ name: "mine" })).toMatchObject({ id: a.sandboxId, name: "mine" });
    });

    it("takes none of another shape, from a checkpoint, for a fork, or that the host no longer has", async () => {
      await offered([a]);
      f.host.addCheckpoint({ id: "ckpt-00000000000000000000", teamId: f.teamId, diskMb: 8_192 });
      for (const body of [
        { memory_mb: 512 },
        { cpus: 1 },
        { disk_mb: 4_096 },
        { checkpoint_id: "ckpt-00000000000000000000" },
      ])
        expect((await create(body)).id).not.toBe(a.sandboxId);
      const source = await create({ memory_mb: 512 });
      const fork = await f.call("ForkSandbox", { source_sandbox_id: source.id });
      expect(fork.body.sandbox.id).not.toBe(a.sandboxId);
      await offered([]);
      expect((await create()).id).not.toBe(a.sandboxId);
    });
  });

  it("answers after 10 s with CREATING when the machine takes longer, and becomes RUNNING later", async () => {
    f.host.fault("createMachine", "hang");
    const answer = f.call("CreateSandbox");
    await expect.poll(() => f.host.calls).toContainEqual(expect.stringMatching(/^createMachine/));
    await f.clock.advance(9_999);
    let isAnswered = false;
    void answer.then(() => {
      isAnswered = true;
    });
    await quiet();
    expect(isAnswered).toBe(false);
    await f.clock.advance(1);
    const { body, status } = await answer;
    expect([status, body.sandbox.state, body.sandbox.domain]).toEqual([200, "SANDBOX_STATE_CREATING", ""]);
    expect(body.data_plane_token).not.toBe("");
    await f.restart();
    await expect.poll(() => stateOf(body.sandbox.id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it("becomes RUNNING with what was changed while it was made", async () => {
    f.host.fault("createMachine", "hang");
    const answer = f.call("CreateSandbox", { name: "old" });
    await expect.poll(() => f.host.calls).toContainEqual(expect.stringMatching(/^createMachine/));
    const [made] = (await f.call("ListSandboxes")).body.sandboxes;
    await f.call("UpdateSandbox", { id: made.id, name: "new" });
    f.host.letGo();
    await f.clock.advance(1_000);
    expect((await answer).body.sandbox).toMatchObject({ state: "SANDBOX_STATE_RUNNING", name: "new" });
  });

  it("answers at once with the state that is, when the gateway closes", async () => {
    f.host.fault("createMachine", "hang");
    const answer = f.call("CreateSandbox");
    await expect.poll(() => f.host.calls).toContainEqual(expect.stringMatching(/^createMachine/));
    await f.restart();
    const { body, status } = await answer;
    expect([status, body.sandbox.state]).toEqual([200, "SANDBOX_STATE_CREATING"]);
    await expect.poll(() => stateOf(body.sandbox.id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it("answers ERROR with a message, and no token, when the machine fails for good", async () => {
    f.host.fault("createMachine", "before", Code.Internal, 1, "the disk could not be made");
    const { body } = await f.call("CreateSandbox");
    expect(body).toMatchObject({
      sandbox: { state: "SANDBOX_STATE_ERROR", error_message: "the disk could not be made", domain: "" },
      data_plane_token: "",
      data_plane_token_expires_at_unix: 0,
    });
    expect(f.host.machines.size).toBe(0);
    for (const method of ["SuspendSandbox", "ResumeSandbox"]) {
      expect((await f.call(method, { id: body.sandbox.id })).body.code).toBe("failed_precondition");
    }
    expect((await f.call("DeleteSandbox", { id: body.sandbox.id })).status).toBe(200);
  });

  it("answers the host's refusal and keeps no record, when the caller still waits", async () => {
    f.host.fault("createMachine", "before", Code.ResourceExhausted, 1, "the host has no memory left");
    const answer = await f.call("CreateSandbox");
    expect([answer.status, answer.body]).toEqual([
      429,
      { code: "resource_exhausted", message: "the host has no memory left" },
    ]);
    expect((await f.call("ListSandboxes")).body.sandboxes).toEqual([]);
    expect(f.host.machines.size).toBe(0);
  });

  it.each([
    ["CreateSandbox", "createMachine"],
    ["ForkSandbox", "forkMachine"],
  ] as const)(
    "%s refused after its caller stopped waiting leaves an ERROR that says why",
    async (method, call) => {
      const source = await create();
      f.host.calls.length = 0;
      f.host.fault(call, "hang", Code.FailedPrecondition, 1, "the host has thought better of it");
      const fields = method === "ForkSandbox" ? { source_sandbox_id: source["id"] } : {};
      const answer = f.call(method, fields);
      await expect.poll(() => f.host.calls).toContainEqual(expect.stringContaining(call));
      await f.clock.advance(10_000);
      const { body, status } = await answer;
      expect([status, body.sandbox.state]).toEqual([200, "SANDBOX_STATE_CREATING"]);
      const { id } = body.sandbox;
      f.host.letGo();
      await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_ERROR");
      expect((await f.call("GetSandbox", { id })).body.sandbox).toMatchObject({
        state: "SANDBOX_STATE_ERROR",
        error_message: "the host has thought better of it",
      });
      expect(f.host.machines.size).toBe(1);
      expect(await stateOf(source["id"])).toBe("SANDBOX_STATE_RUNNING");
      expect((await f.call("DeleteSandbox", { id })).status).toBe(200);
      await expect.poll(() => stateOf(id)).toBe("not_found");
    },
  );

  it("tries again by itself what fails for a passing reason, before or after its effect", async () => {
    f.host.fault("createMachine", "before");
    f.host.fault("createMachine", "after");
    const answer = f.call("CreateSandbox");
    await expect.poll(() => f.host.calls).toContainEqual(expect.stringMatching(/^createMachine/));
    await f.clock.advance(1_000);
    expect((await answer).body.sandbox.state).toBe("SANDBOX_STATE_RUNNING");
    expect(f.host.machines.size).toBe(1);
  });

  it.each([
    [{ name: "x".repeat(65) }, /^name is "x+"; it must be 1 to 64 printable characters$/],
    [{ name: "a\nb" }, /^name is "a\\nb"; it must be 1 to 64 printable/],
    [{ name: 5 }, /^name: expected string, got 5$/],
    [{ cpus: 0 }, /^cpus is 0; it must be a number from 0.1 to 64$/],
    [{ cpus: "NaN" }, /^cpus: expected number/],
    [{ cpus: -1 }, /^cpus is -1/],
    [{ memory_mb: 64 }, /^memory_mb is 64; it must be a whole number from 128 to 262144$/],
    [{ memory_mb: -1 }, /^memory_mb: /],
    [{ memory_mb: 1.5 }, /^memory_mb: /],
    [{ disk_mb: 1 }, /^disk_mb is 1; it must be a whole number from 1024/],
    [{ runtime: "docker" }, /^runtime is "docker"; it must be one of gvisor, qemu$/],
    [{ template: "nope" }, /^template is "nope"; it must be one of base$/],
    [
      { timeout_seconds: 40_000_000 },
      /^timeout_seconds is 40000000; it must be a whole number from 0 to 31536000$/,
    ],
    [{ idle_suspend_seconds: 40_000_000 }, /^idle_suspend_seconds is 40000000/],
    [{ metadata: { "": "x" } }, /^a key of metadata is ""; it must be 1 to 128/],
    [{ metadata: { k: "x".repeat(1_025) } }, /^metadata\["k"\] is "x+…; it must be at most 1024/],
    [{ metadata: { k: 5 } }, /^metadata: map entry "k": expected string, got 5/],
    [
      { metadata: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [i, ""])) },
      /^metadata has 65 entries; at most 64/,
    ],
    [{ env: { "A=B": "x" } }, /^a name in env is "A=B"; it must be non-empty, without = and NUL/],
    [{ env: { A: "\0" } }, /^env\["A"\] is "\\u0000"; it must be without NUL/],
    [{ env: { A: "x".repeat(140_000) } }, /^env takes 1\d+ bytes; at most 131072/],
    [
      { env: Object.fromEntries(Array.from({ length: 257 }, (_, i) => [`A${i}`, ""])) },
      /^env has 257 entries; at most 256/,
    ],
    [{ egress: {} }, /^egress\.mode is ""; it must be one of open, none, allow/],
    [{ egress: { mode: "none", domains: ["a.test"] } }, /^egress\.domains is only for mode allow, not none/],
    [
      { egress: { mode: "allow", domains: ["a.test", "*"] } },
      /^egress\.domains\[1\] is "\*"; it must be a domain/,
    ],
    [{ egress: { mode: "allow", cidrs: ["::1"] } }, /^egress\.cidrs\[0\] is "::1"; it must be an IPv4/],
    [
      { egress: { mode: "allow", domains: Array(129).fill("a.test") } },
      /^egress\.domains has 129 entries; at most 128/,
    ],
    [
      { egress: { mode: "allow", cidrs: Array(129).fill("1.1.1.1") } },
      /^egress\.cidrs has 129 entries; at most 128/,
    ],
    [{ public_ports: [0] }, /^public_ports is 0; it must be a whole number from 1 to 65535/],
    [{ public_ports: [70_000] }, /^public_ports is 70000/],
    [{ public_ports: ["http"] }, /^public_ports is "http"; it must be port numbers, or \["\*"\] for every/],
    [{ public_ports: ["*", 80] }, /^public_ports is "\*"; it must be port numbers/],
    [{ public_ports: [defaults.agentPort] }, /^public_ports is \d+; it must be another port/],
    [{ public_ports: [80.5] }, /^public_ports is 80\.5/],
    [{ on_timeout: "stop" }, /^on_timeout is "stop"; it must be one of delete, suspend$/],
    [{ public_ports: Array.from({ length: 65 }, (_, i) => i + 1) }, /^public_ports has 65 ports; at most 64/],
    [{ auto_resume: "yes" }, /^auto_resume: expected boolean, got "yes"/],
  ])("refuses %j", async (body, message) => {
    const answer = await f.call("CreateSandbox", body);
    expect([answer.status, answer.body.code]).toEqual([400, "invalid_argument"]);
    expect(answer.body.message).toMatch(message);
    expect(f.host.machines.size).toBe(0);
  });

  it("takes every field at its limit", async () => {
    const body = {
      name: "x".repeat(64),
      cpus: 0.1,
      memory_mb: 128,
      disk_mb: 1_024,
      timeout_seconds: 31_536_000,
      metadata: { ["k".repeat(128)]: "v".repeat(1_024) },
      public_ports: [65_535, 1, 1],
    };
    expect(await create(body)).toMatchObject({ ...body, public_ports: [1, 65_535] });
  });

  it("takes every port as public", async () => {
    expect(await create({ public_ports: ["*"] })).toMatchObject({ public_ports: ["*"] });
  });

  it("refuses a runtime that this host lacks", async () => {
    const answer = await f.call("CreateSandbox", { runtime: "qemu" });
    expect(answer.body).toEqual({
      code: "failed_precondition",
      message: "runtime qemu is not available on this host; available: gvisor",
    });
  });

  it("starts from a checkpoint of the team, when it is visible and fits", async () => {
    const id = "ckpt-00000000000000000001";
    f.host.addCheckpoint({ id, teamId: f.teamId, sandboxId: none, diskMb: 16_384 });
    f.host.addCheckpoint({ id: "ckpt-00000000000000000002", teamId: f.teamId, visible: false });
    f.host.addCheckpoint({ id: "ckpt-00000000000000000003", teamId: "team-other" });
    f.host.addCheckpoint({ id: "ckpt-00000000000000000004", teamId: f.teamId, runtime: "qemu" });
    f.host.runtimes = ["gvisor", "qemu"];
    expect(await create({ checkpoint_id: id })).toMatchObject({ disk_mb: 16_384, source_checkpoint_id: id });
    const refusals: [object, string, RegExp][] = [
      [
        { checkpoint_id: id, disk_mb: 8_192 },
        "invalid_argument",
        /^disk_mb is 8192; it must be at least 16384/,
      ],
      [{ checkpoint_id: "ckpt-00000000000000000002" }, "failed_precondition", /not yet visible in storage/],
      [
        { checkpoint_id: "ckpt-00000000000000000003" },
        "not_found",
        /^checkpoint_id: the team has no checkpoint/,
      ],
      [{ checkpoint_id: "nonsense" }, "not_found", /no checkpoint "nonsense"/],
      [
        { checkpoint_id: "ckpt-00000000000000000004", runtime: "gvisor" },
        "failed_precondition",
        /written by a qemu/,
      ],
    ];
    for (const [body, code, message] of refusals) {
      const answer = await f.call("CreateSandbox", body);
      expect(answer.body.code).toBe(code);
      expect(answer.body.message).toMatch(message);
    }
    expect(await create({ checkpoint_id: "ckpt-00000000000000000004" })).toMatchObject({ runtime: "qemu" });
  });
});

describe("ForkSandbox", () => {
  it("clones a running sandbox with what the request leaves out, and leaves the source as it was", async () => {
    const source = await create({
      name: "origin",
      metadata: { a: "1" },
      cpus: 4,
      env: { X: "1" },
      auto_resume: true,
      public_ports: [80],
    });
    const { body } = await f.call("ForkSandbox", { source_sandbox_id: source.id });
    expect(body.sandbox).toMatchObject({
      state: "SANDBOX_STATE_RUNNING",
      source_sandbox_id: source.id,
      metadata: { a: "1" },
      cpus: 4,
      auto_resume: true,
      public_ports: [],
    });
    expect(body.sandbox.name).toMatch(/^[a-z]+-[a-z]+-\d{4}$/);
    expect(body.data_plane_token).not.toBe("");
    expect((await f.call("GetSandbox", { id: source.id })).body.sandbox).toEqual(source);
    const other = await f.call("ForkSandbox", {
      source_sandbox_id: source.id,
      name: "b",
      metadata: { c: "2" },
      auto_resume: false,
    });
    expect(other.body.sandbox).toMatchObject({ name: "b", metadata: { c: "2" }, auto_resume: false });
    expect(f.host.calls.filter((one) => one.startsWith("forkMachine"))).toHaveLength(2);
  });

  it("needs a RUNNING or SUSPENDED source, and wakes none", async () => {
    const { id } = await create();
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    const fork = await f.call("ForkSandbox", { source_sandbox_id: id });
    expect(fork.body.sandbox).toMatchObject({ state: "SANDBOX_STATE_RUNNING", source_sandbox_id: id });
    expect(await stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    f.host.fault("resumeMachine", "hang");
    await f.call("ResumeSandbox", { id });
    const answer = await f.call("ForkSandbox", { source_sandbox_id: id });
    f.host.letGo();
    expect([answer.status, answer.body.code]).toEqual([400, "failed_precondition"]);
    expect(answer.body.message).toContain(
      "is in SANDBOX_STATE_RESUMING; ForkSandbox needs SANDBOX_STATE_RUNNING or SANDBOX_STATE_SUSPENDED",
    );
  });

  it("answers unimplemented, and leaves nothing, where the host cannot", async () => {
    const { id } = await create();
    f.host.fault("forkMachine", "before", Code.Unimplemented, 1, "fork is not there yet");
    const answer = await f.call("ForkSandbox", { source_sandbox_id: id });
    expect([answer.status, answer.body.code]).toEqual([501, "unimplemented"]);
    expect((await f.call("ListSandboxes")).body.sandboxes).toHaveLength(1);
  });

  it("ten at once from one source", async () => {
    const { id } = await create();
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => f.call("ForkSandbox", { source_sandbox_id: id })),
    );
    expect(answers.map((one) => one.body.sandbox.state)).toEqual(Array(10).fill("SANDBOX_STATE_RUNNING"));
    expect(new Set(answers.map((one) => one.body.sandbox.id)).size).toBe(10);
  });

  it("starts from a checkpoint of the source only, once it is visible", async () => {
    const { id } = await create();
    f.host.addCheckpoint({ id: "ckpt-00000000000000000001", teamId: f.teamId, sandboxId: id });
    f.host.addCheckpoint({
      id: "ckpt-00000000000000000002",
      teamId: f.teamId,
      sandboxId: id,
      visible: false,
    });
    f.host.addCheckpoint({ id: "ckpt-00000000000000000003", teamId: f.teamId, sandboxId: none });
    const fork = (checkpoint_id: string) => f.call("ForkSandbox", { source_sandbox_id: id, checkpoint_id });
    expect((await fork("ckpt-00000000000000000001")).body.sandbox).toMatchObject({
      source_sandbox_id: id,
      source_checkpoint_id: "ckpt-00000000000000000001",
    });
    expect((await fork("ckpt-00000000000000000002")).body.code).toBe("failed_precondition");
    expect((await fork("ckpt-00000000000000000003")).body.code).toBe("not_found");
    expect(f.host.calls.some((one) => one.startsWith("forkMachine"))).toBe(false);
  });
});
