import { createPublicKey, createVerify } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Code, createClient, createRouterTransport } from "@connectrpc/connect";
import { defaults } from "@cloche/protocol";
import { RouteService } from "@cloche/protocol/edge";
import { MachinePhase } from "@cloche/protocol/host";
import { limits } from "@cloche/protocol";
import { anAuditEntry, anOperation } from "../testing/database-records.ts";
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
const otherTeam = async (): Promise<string> => {
  const team = await f.gateway.addTeam("others");
  return (await f.gateway.createApiKey(team.id, "other")).secret;
};
const none = "sbx-00000000000000000000";
/** For one body that is sent to several methods. */
const ignoreUnknown = { headers: { "x-cloche-unknown-fields": "ignore" } };

describe("ids", () => {
  const methods: [string, string][] = [
    ["GetSandbox", "id"],
    ["DeleteSandbox", "id"],
    ["SuspendSandbox", "id"],
    ["ResumeSandbox", "id"],
    ["UpdateSandbox", "id"],
    ["ForkSandbox", "source_sandbox_id"],
    ["IssueDataPlaneToken", "sandbox_id"],
    ["IssuePortLink", "sandbox_id"],
    ["GetSandboxEgress", "id"],
    ["GetSandboxMetrics", "id"],
  ];
  it.each(methods)(
    "%s refuses a missing %s, and does not find unknown ones or another team's",
    async (method, field) => {
      const missing = await f.call(method, {});
      expect([missing.status, missing.body.code]).toEqual([400, "invalid_argument"]);
      expect(missing.body.message).toMatch(new RegExp(`^${field} is missing`));
      const secret = await otherTeam();
      const { id } = (await f.call("CreateSandbox", {}, { secret })).body.sandbox;
      for (const one of [none, "nonsense", "../../etc", id]) {
        const answer = await f.call(method, { [field]: one, port: 80 }, ignoreUnknown);
        expect([answer.status, answer.body]).toEqual([
          404,
          { code: "not_found", message: `${field}: there is no sandbox ${JSON.stringify(one)}` },
        ]);
      }
      expect((await f.call("GetSandbox", { id }, { secret })).body.sandbox.state).toBe(
        "SANDBOX_STATE_RUNNING",
      );
    },
  );
});

describe("suspend and resume", () => {
  it("answers at once with the state on the way, and keeps the domain", async () => {
    const { id, domain } = await create();
    expect((await f.call("SuspendSandbox", { id })).body.sandbox).toMatchObject({
      state: "SANDBOX_STATE_SUSPENDING",
      domain,
    });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect((await f.call("GetSandbox", { id })).body.sandbox.domain).toBe(domain);
    expect((await f.call("ResumeSandbox", { id })).body.sandbox).toMatchObject({
      state: "SANDBOX_STATE_RESUMING",
      domain,
    });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
  });

  it("is safe to retry", async () => {
    const { id } = await create();
    f.host.fault("suspendMachine", "hang");
    const first = (await f.call("SuspendSandbox", { id })).body.sandbox;
    expect((await f.call("SuspendSandbox", { id })).body.sandbox).toEqual(first);
    await f.restart();
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    const suspended = (await f.call("GetSandbox", { id })).body.sandbox;
    expect((await f.call("SuspendSandbox", { id })).body.sandbox).toEqual(suspended);
    const twice = await Promise.all([f.call("ResumeSandbox", { id }), f.call("ResumeSandbox", { id })]);
    expect(twice.map((one) => one.status)).toEqual([200, 200]);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    expect((await f.call("ResumeSandbox", { id })).body.sandbox.state).toBe("SANDBOX_STATE_RUNNING");
    expect(f.host.calls.filter((one) => one.startsWith("resumeMachine"))).toHaveLength(1);
  });

  it("is refused in other states, naming the one it is in", async () => {
    const { id } = await create();
    f.host.fault("suspendMachine", "hang");
    await f.call("SuspendSandbox", { id });
    const answer = await f.call("ResumeSandbox", { id });
    expect([answer.status, answer.body]).toEqual([
      400,
      {
        code: "failed_precondition",
        message: `sandbox "${id}" is in SANDBOX_STATE_SUSPENDING; ResumeSandbox needs SANDBOX_STATE_SUSPENDED; once it is suspended, resume it: ResumeSandbox, or cloche resume ${id}`,
      },
    ]);
  });

  it("a suspend that cannot complete goes back to RUNNING with its reason, which the next clears", async () => {
    const { id } = await create();
    f.host.fault("suspendMachine", "before", Code.Unimplemented, 1, "this host cannot suspend");
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    const { sandbox } = (await f.call("GetSandbox", { id })).body;
    expect(sandbox.error_message).toBe("suspend did not complete: this host cannot suspend");
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect((await f.call("GetSandbox", { id })).body.sandbox.error_message).toBe("");
  });

  it("a resume that fails for a passing reason goes back to SUSPENDED, one whose image is lost to ERROR", async () => {
    const { id } = await create();
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    f.host.fault("resumeMachine", "before", Code.ResourceExhausted, 1, "no memory left");
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect((await f.call("GetSandbox", { id })).body.sandbox.error_message).toBe(
      "resume did not complete: no memory left",
    );
    // A failed machine would keep its image, and its sandbox be SUSPENDED. This machine is gone.
    f.host.lose(id);
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_ERROR");
  });
});

describe("a sandbox that lost its memory", () => {
  const words =
    "started from its disk, without its memory: the memory image is damaged; services started: web";
  const lose = async (): Promise<string> => {
    const { id } = await create();
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    const machine = f.host.machines.get(id);
    if (machine !== undefined) machine.errorMessage = words;
    return id;
  };
  const said = async (id: string): Promise<string> =>
    (await f.call("GetSandbox", { id })).body.sandbox.error_message;

  it("says so until its next change, over a restart, and so does the audit log", async () => {
    const id = await lose();
    await f.call("ResumeSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    expect(await said(id)).toBe(words);
    const audit = await f.database.audit.list({ teamId: f.teamId, subject: id, limit: 10 });
    expect(audit[0]).toMatchObject({ action: "sandbox.resume.done", result: "ok", detail: words });
    await f.call("UpdateSandbox", { id, name: "other" });
    await f.restart();
    expect(await said(id)).toBe(words);
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect(await said(id)).toBe("");
  });

  it("says so where its machine was found running", async () => {
    const id = await lose();
    f.host.set(id, MachinePhase.RUNNING);
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_RUNNING");
    expect(await said(id)).toBe(words);
  });
});

describe("DeleteSandbox", () => {
  it("is DELETING until destroyed, deleted again meanwhile without complaint, then not found", async () => {
    const { id } = await create();
    f.host.fault("destroyMachine", "hang");
    expect((await f.call("DeleteSandbox", { id })).body).toEqual({});
    expect(await stateOf(id)).toBe("SANDBOX_STATE_DELETING");
    expect((await f.call("DeleteSandbox", { id })).body).toEqual({});
    for (const [method, field] of [
      ["IssueDataPlaneToken", "sandbox_id"],
      ["SuspendSandbox", "id"],
      ["ResumeSandbox", "id"],
      ["ForkSandbox", "source_sandbox_id"],
      ["UpdateSandbox", "id"],
    ] as const) {
      const answer = await f.call(method, { [field]: id, name: "x" }, ignoreUnknown);
      expect([answer.status, answer.body.code]).toEqual([400, "failed_precondition"]);
      expect(answer.body.message).toContain("is in SANDBOX_STATE_DELETING");
    }
    await f.restart();
    await expect.poll(() => stateOf(id)).toBe("not_found");
    expect((await f.call("DeleteSandbox", { id })).body.code).toBe("not_found");
    expect(f.host.machines.size).toBe(0);
  });

  it("goes on trying while the host fails, whatever it says", async () => {
    const { id } = await create();
    f.host.fault("destroyMachine", "before", Code.Internal, 5);
    await f.call("DeleteSandbox", { id });
    await quiet();
    expect(await stateOf(id)).toBe("SANDBOX_STATE_DELETING");
    await f.clock.advance(60_000);
    expect(await stateOf(id)).toBe("not_found");
  });

  it("stops what is under way: create, suspend and resume that hang", async () => {
    f.host.fault("createMachine", "hang");
    const pending = f.call("CreateSandbox", { name: "slow" });
    await expect.poll(async () => (await f.call("ListSandboxes")).body.sandboxes).toHaveLength(1);
    const [slow] = (await f.call("ListSandboxes")).body.sandboxes;
    await f.call("DeleteSandbox", { id: slow.id });
    await expect.poll(() => stateOf(slow.id)).toBe("not_found");
    await pending;
    const { id } = await create();
    f.host.fault("suspendMachine", "hang");
    await f.call("SuspendSandbox", { id });
    await f.call("DeleteSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("not_found");
    expect(f.host.machines.size).toBe(0);
  });
});

describe("IssueDataPlaneToken", () => {
  it("issues a token with the decided claims, signed by the newest key", async () => {
    const { id } = await create();
    const { body } = await f.call("IssueDataPlaneToken", { sandbox_id: id });
    const [header = "", payload = "", signature = ""] = body.jwt.split(".");
    const read = (part: string) => JSON.parse(Buffer.from(part, "base64url").toString());
    expect(read(header)).toEqual({ alg: "RS256", kid: "test-key", typ: "JWT" });
    const now = Math.floor(f.clock.nowMs() / 1_000);
    expect(read(payload)).toEqual({
      iss: "cloche-test",
      sub: f.teamId,
      aud: id,
      sandbox_id: id,
      iat: now,
      nbf: now,
      exp: now + 3_600,
      jti: expect.stringMatching(/^[\w-]{22}$/),
    });
    expect(body.expires_at_unix).toBe(now + 3_600);
    expect(body.data_plane_url).toBe("http://127.0.0.1:7081");
    const [key] = f.gateway.verificationKeys;
    const publicKey = createPublicKey({ key: { ...key?.jwk }, format: "jwk" });
    const verify = createVerify("RSA-SHA256").update(`${header}.${payload}`);
    expect(verify.verify(publicKey, signature, "base64url")).toBe(true);
  });

  it("is possible while SUSPENDED", async () => {
    const { id } = await create();
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    expect((await f.call("IssueDataPlaneToken", { sandbox_id: id })).status).toBe(200);
  });
});

describe("ListSandboxes", () => {
  it("pages newest first, filters by state and metadata, and sees only the team's", async () => {
    const secret = await otherTeam();
    await f.call("CreateSandbox", {}, { secret });
    const ids: string[] = [];
    for (let i = 0; i < 5; i += 1)
      ids.unshift((await create({ metadata: { even: String(i % 2 === 0), k: "v" } })).id);
    const list = async (body: object) => (await f.call("ListSandboxes", body)).body;
    const idsOf = (body: { sandboxes: { id: string }[] }) => body.sandboxes.map((one) => one.id);
    expect(idsOf(await list({}))).toEqual(ids);
    const first = await list({ page_size: 2 });
    expect(idsOf(first)).toEqual(ids.slice(0, 2));
    const second = await list({ page_size: 2, page_token: first.next_page_token });
    expect(idsOf(second)).toEqual(ids.slice(2, 4));
    const third = await list({ page_size: 2, page_token: second.next_page_token });
    expect([idsOf(third), third.next_page_token]).toEqual([ids.slice(4), ""]);
    expect((await list({ page_size: 5 })).next_page_token).toBe("");
    expect(idsOf(await list({ metadata: { even: "true" } }))).toEqual([ids[0], ids[2], ids[4]]);
    expect(idsOf(await list({ metadata: { even: "true", k: "other" } }))).toEqual([]);
    const many = Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`k${i}`, "v"]));
    expect(await list({ metadata: many })).toMatchObject({ code: "invalid_argument" });
    await f.call("SuspendSandbox", { id: ids[1] });
    await expect.poll(() => stateOf(ids[1] ?? "")).toBe("SANDBOX_STATE_SUSPENDED");
    expect(idsOf(await list({ states: ["SANDBOX_STATE_SUSPENDED"] }))).toEqual([ids[1]]);
    expect(idsOf(await list({ states: ["SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_RUNNING"] }))).toEqual(ids);
  });

  it.each([
    [{ order_by: "age" }, /^order_by is "age"; it must be one of created_at, -created_at, name, -name$/],
    [{ name: "a\u0000" }, /^name is /],
    [{ name: "x".repeat(65) }, /^name is /],
    [{ page_token: "nonsense" }, /^page_token "nonsense" is not one; pass next_page_token/],
    [
      { states: ["RUNNING"] },
      /^states\[0\] is "RUNNING"; it must be a sandbox state such as SANDBOX_STATE_RUNNING/,
    ],
    [{ states: ["SANDBOX_STATE_UNSPECIFIED"] }, /^states\[0\] is "UNSPECIFIED"/],
    [{ states: [99] }, /^states\[0\] is 99/],
    [{ states: "SANDBOX_STATE_RUNNING" }, /^states: expected Array/],
    [{ page_size: -1 }, /^page_size: /],
  ])("refuses %j", async (body, message) => {
    const answer = await f.call("ListSandboxes", body);
    expect([answer.status, answer.body.code]).toEqual([400, "invalid_argument"]);
    expect(answer.body.message).toMatch(message);
  });

  it("answers all up to a cap when asked for no size, and tells by a token that there are more", async () => {
    const { id } = await create();
    const record = await f.database.sandboxes.get(id);
    const operation = anOperation({ sandboxId: id });
    if (record === undefined) throw new Error("not created");
    for (let n = 0; n < limits.unpagedList; n += 1) {
      const one = { ...record, id: `sbx-${String(n).padStart(20, "0")}`, ordinal: record.ordinal + 1 + n };
      const begun = { ...operation, id: `op-${n}`, sandboxId: one.id };
      const audit = anAuditEntry({ subject: one.id });
      await f.database.sandboxes.insert([{ record: one, begin: begun, audit }]);
    }
    const first = (await f.call("ListSandboxes")).body;
    expect(first.sandboxes).toHaveLength(limits.unpagedList);
    const rest = (await f.call("ListSandboxes", { page_token: first.next_page_token })).body;
    expect(rest).toMatchObject({ sandboxes: [{ id }], next_page_token: "" });
  });

  it("refuses a page token under other filters", async () => {
    await create();
    await create();
    const { next_page_token } = (await f.call("ListSandboxes", { page_size: 1 })).body;
    const answer = await f.call("ListSandboxes", {
      page_size: 1,
      page_token: next_page_token,
      states: ["SANDBOX_STATE_ERROR"],
    });
    expect(answer.body.message).toMatch(/^page_token belongs to another list/);
  });

  it("orders by name or age both ways, by pages that new sandboxes do not move, and by prefix", async () => {
    for (const name of ["b", "a", "ab", "B", "a", "é"]) await create({ name });
    const list = async (body: object) => (await f.call("ListSandboxes", body)).body;
    const namesOf = (body: { sandboxes: { name: string }[] }) => body.sandboxes.map((one) => one.name);
    const byName = ["B", "a", "a", "ab", "b", "é"];
    expect(namesOf(await list({ order_by: "name" }))).toEqual(byName);
    expect(namesOf(await list({ order_by: "-name" }))).toEqual(byName.toReversed());
    expect(namesOf(await list({ order_by: "created_at" }))).toEqual(["b", "a", "ab", "B", "a", "é"]);
    expect(namesOf(await list({ name: "a", order_by: "name" }))).toEqual(["a", "a", "ab"]);
    expect(namesOf(await list({ name: "a" }))).toEqual(["a", "ab", "a"]);
    for (const order_by of ["name", "-name", "created_at", "-created_at"]) {
      const before = (await list({ order_by })).sandboxes.map((one: { id: string }) => one.id);
      const seen: string[] = [];
      for (let page_token = "", first = true; first || page_token !== ""; first = false) {
        const page = await list({ order_by, page_size: 2, page_token });
        seen.push(...page.sandboxes.map((one: { id: string }) => one.id));
        page_token = page.next_page_token;
        await create({ name: "aa" });
      }
      expect(seen.filter((id) => before.includes(id))).toEqual(before);
      expect(new Set(seen).size).toBe(seen.length);
    }
  });
});

describe("UpdateSandbox", () => {
  it("changes what is given and nothing else, and tells the host", async () => {
    const before = await create({ name: "a", metadata: { k: "1" }, timeout_seconds: 100 });
    await f.clock.advance(5_000);
    const { sandbox } = (
      await f.call("UpdateSandbox", { id: before.id, name: "b", idle_suspend_seconds: 60 })
    ).body;
    expect(sandbox).toEqual({
      ...before,
      name: "b",
      idle_suspend_seconds: 60,
      updated_at: sandbox.updated_at,
    });
    expect(sandbox.updated_at > before.updated_at).toBe(true);
    await expect.poll(() => f.host.idleLimits.get(before.id)).toBe(60);
    const cleared = await f.call("UpdateSandbox", {
      id: before.id,
      metadata: { entries: {} },
      public_ports: { ports: [8080] },
      auto_resume: true,
    });
    expect(cleared.body.sandbox).toMatchObject({
      metadata: {},
      public_ports: [8080],
      auto_resume: true,
      name: "b",
    });
    expect((await f.call("ListSandboxes", { metadata: { k: "1" } })).body.sandboxes).toEqual([]);
  });

  it.each([
    [{ name: "" }, /^name is ""; it must be 1 to 64/],
    [{ timeout_seconds: 40_000_000 }, /^timeout_seconds is 40000000/],
    [{ on_timeout: "" }, /^on_timeout is ""; it must be one of delete, suspend/],
    [{ metadata: { entries: { "": "" } } }, /^a key of metadata/],
    [{ metadata: { entries: { a: "b" } }, public_ports: { ports: [0] } }, /^public_ports is 0/],
  ])("refuses %j", async (body, message) => {
    const { id } = await create();
    const answer = await f.call("UpdateSandbox", { id, ...body });
    expect([answer.status, answer.body.code]).toEqual([400, "invalid_argument"]);
    expect(answer.body.message).toMatch(message);
  });
});

describe("egress", () => {
  const list = { mode: "allow", domains: ["*.example.org:443"], cidrs: ["203.0.113.0/24"] };

  it("is open by default, inherited by forks unless they say otherwise, and told to the host", async () => {
    const open = await create();
    expect(open.egress).toEqual({ mode: "open", domains: [], cidrs: [] });
    const source = await create({ egress: list });
    expect(source.egress).toEqual(list);
    expect(f.host.egress.get(source.id)).toMatchObject(list);
    const heir = await f.call("ForkSandbox", { source_sandbox_id: source.id });
    expect(heir.body.sandbox.egress).toEqual(list);
    const other = await f.call("ForkSandbox", { source_sandbox_id: source.id, egress: { mode: "none" } });
    expect(other.body.sandbox.egress).toEqual({ mode: "none", domains: [], cidrs: [] });
    expect(f.host.egress.get(other.body.sandbox.id)).toMatchObject({ mode: "none" });
  });

  it("is in force on the host when a change of it answers, each later than the one before", async () => {
    const { id } = await create();
    const revisions: number[] = [];
    for (const egress of [{ mode: "none" }, list, { mode: "open" }]) {
      const answer = await f.call("UpdateSandbox", { id, egress });
      expect(answer.body.sandbox.egress).toMatchObject(egress);
      expect(f.host.egress.get(id)).toMatchObject(egress);
      revisions.push(f.host.egress.get(id)?.revision ?? 0);
    }
    expect(revisions).toEqual(revisions.toSorted((a, b) => a - b));
    expect(new Set(revisions).size).toBe(3);
    f.host.fault("updateMachine", "before", Code.Internal, 1, "nft is broken");
    expect(await f.call("UpdateSandbox", { id, egress: { mode: "none" } })).toMatchObject({ status: 500 });
  });

  it("shows what was denied", async () => {
    const { id } = await create({ egress: list });
    f.host.denials = [{ destination: "evil.test", protocol: "dns", count: 2, lastAtUnixMs: 1_000 }];
    expect((await f.call("GetSandboxEgress", { id })).body).toEqual({
      egress: list,
      denied_packets: 3,
      denied_names: 1,
      recent_denials: [
        { destination: "evil.test", protocol: "dns", port: 0, count: 2, last_at: "1970-01-01T00:00:01.000Z" },
      ],
    });
  });
});

describe("checkpoints of the team", () => {
  it("lists newest first and deletes", async () => {
    const id = "ckpt-00000000000000000001";
    f.host.addCheckpoint({ id, teamId: f.teamId, sandboxId: none, sizeBytes: 5_000_000_000, name: "one" });
    f.host.addCheckpoint({
      id: "ckpt-00000000000000000002",
      teamId: f.teamId,
      sandboxId: "sbx-2",
      createdAt: "2026-02-01T00:00:00.000Z",
    });
    f.host.addCheckpoint({ id: "ckpt-00000000000000000003", teamId: "team-other" });
    const { checkpoints } = (await f.call("ListCheckpoints")).body;
    expect(checkpoints.map((one: { id: string }) => one.id)).toEqual(["ckpt-00000000000000000002", id]);
    expect(checkpoints[1]).toEqual({
      id,
      name: "one",
      sandbox_id: none,
      created_at: "2026-01-01T00:00:00.000Z",
      size_bytes: 5_000_000_000,
      size_human: "4.7 GiB",
      visible: true,
      runtime: "gvisor",
      automatic: false,
    });
    expect((await f.call("ListCheckpoints", { sandbox_id: none })).body.checkpoints).toHaveLength(1);
    const page = (await f.call("ListCheckpoints", { page_size: 1 })).body;
    expect(page.checkpoints).toEqual([checkpoints[0]]);
    const next = (await f.call("ListCheckpoints", { page_size: 1, page_token: page.next_page_token })).body;
    expect(next).toEqual({ checkpoints: [checkpoints[1]], next_page_token: "" });
    const wrong = await f.call("ListCheckpoints", { page_token: "x" });
    expect(wrong.body).toMatchObject({
      code: "invalid_argument",
      message: expect.stringMatching(/^page_token "x"/),
    });
    expect((await f.call("DeleteCheckpoint", { id })).body).toEqual({ freed_bytes: 5_000_000_000 });
    for (const [one, code] of [
      [id, "not_found"],
      ["ckpt-00000000000000000003", "not_found"],
      ["nonsense", "not_found"],
      ["", "invalid_argument"],
    ]) {
      expect((await f.call("DeleteCheckpoint", { id: one })).body.code).toBe(code);
    }
  });
});

describe("IssuePortLink", () => {
  const edge = () =>
    createClient(
      RouteService,
      createRouterTransport((router) => {
        router.service(RouteService, f.gateway.routeService);
      }),
    );

  it("gives a link that works once, for its port and sandbox, within 60 s", async () => {
    const { id } = await create();
    const issue = async () => {
      const { body } = await f.call("IssuePortLink", { sandbox_id: id, port: 3000, path: "/app?x=1" });
      expect(body.expires_at_unix).toBe(Math.floor((f.clock.nowMs() + 60_000) / 1_000));
      const url = new URL(body.url);
      expect(url.host).toBe(`3000-${id}.cloche.localhost:7443`);
      expect(url.searchParams.get("path")).toBe("/app?x=1");
      return url.searchParams.get("token") ?? "";
    };
    const redeem = async (linkToken: string, port = 3000, sandboxId = id) =>
      await edge().redeemPortLink({ linkToken, sandboxId, port });
    const linkToken = await issue();
    const { cookieToken } = await redeem(linkToken);
    const claims = JSON.parse(Buffer.from(cookieToken.split(".")[1] ?? "", "base64url").toString());
    expect(claims).toMatchObject({ aud: `port:3000:${id}`, port: 3000, sandbox_id: id });
    await expect(redeem(linkToken)).rejects.toThrow(/unknown, used or expired/);
    const tried = await issue();
    await expect(redeem(tried, 3001)).rejects.toThrow(/unknown, used/);
    await expect(redeem(tried, 3000, none)).rejects.toThrow(/unknown, used/);
    // Where it does not belong, it is not used up.
    expect(await redeem(tried)).toBeDefined();
    const late = await issue();
    await f.clock.advance(60_000);
    await expect(redeem(late)).rejects.toThrow(/expired/);
  });

  it.each([
    [{ port: 0 }, /^port is 0; it must be a whole number from 1 to 65535/],
    [{ port: 70_000 }, /^port is 70000/],
    [
      { port: defaults.agentPort },
      /^port is \d+; it must be another port: this one is the sandbox's own agent's/,
    ],
    [{ port: 80, path: "//evil.example" }, /^path is "\/\/evil.example"; it must be an absolute path/],
    [{ port: 80, path: "app" }, /^path is "app"/],
    [{ port: 80, path: "/\\evil" }, /^path is/],
    [{ port: 80, path: "/a\r\nb" }, /^path is/],
  ])("refuses %j", async (body, message) => {
    const { id } = await create();
    const answer = await f.call("IssuePortLink", { sandbox_id: id, ...body });
    expect([answer.status, answer.body.code]).toEqual([400, "invalid_argument"]);
    expect(answer.body.message).toMatch(message);
  });
});

describe("the alias package", () => {
  it("serves every method alike", async () => {
    const service = "svc.public.v1.SandboxService";
    const { body } = await f.call("CreateSandbox", { name: "by alias" }, { service });
    expect((await f.call("GetSandbox", { id: body.sandbox.id }, { service })).body.sandbox.name).toBe(
      "by alias",
    );
    expect((await f.call("ListApiKeys", {}, { service: "svc.public.v1.ApiKeyService" })).status).toBe(200);
  });
});
