/** The data plane routes that the host answers: their audit events, and the cost of waiting. */
import { randomBytes } from "node:crypto";
import { request } from "node:http";
import { connect } from "node:net";
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { listenerBounds, type Log, silentLog, systemClock } from "@cloche/base";
import { limits, newSandboxId } from "@cloche/protocol";
import { type AuditEvent, HostService, MachineEvent_Kind } from "@cloche/protocol/host";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { DataPlaneCaller, signToken, testKeys } from "../testing/data-plane-caller.ts";
import { FakeWorld } from "../testing/fake-world.ts";

const id = newSandboxId((length) => new Uint8Array(randomBytes(length)));
const spec = { teamId: "team-t", name: "t", template: "base", cpus: 1, memoryMb: 256, diskMb: 1_024 };

describe("the data plane of the host", { timeout: 30_000 }, () => {
  let world: FakeWorld;
  let caller: DataPlaneCaller;
  let sleeps: number[];
  let logged: { fields: object; message: string }[];
  const client = () =>
    createClient(
      HostService,
      createRouterTransport((router) => void router.service(HostService, world.host.service)),
    );

  beforeEach(async () => {
    world = await FakeWorld.open();
    sleeps = [];
    world.clock = {
      ...systemClock,
      sleep: (ms, signal) => {
        sleeps.push(ms);
        return systemClock.sleep(ms, signal);
      },
    };
    logged = [];
    const note = (fields: object, message: string): void => void logged.push({ fields, message });
    const log: Log = { ...silentLog, warn: note, error: note, child: () => log };
    world.log = log;
    await world.start();
    await client().createMachine({ spec: { ...spec, sandboxId: id } });
    await client().setVerificationKeys(testKeys);
    caller = await DataPlaneCaller.open(() => world.host);
  });
  afterEach(async () => {
    caller.close();
    await world.close();
  });

  /** The next `count` events for the audit log. */
  const audits = async (count: number): Promise<AuditEvent[]> => {
    const found: AuditEvent[] = [];
    for await (const { kind, audit } of client().watchMachines({})) {
      if (kind === MachineEvent_Kind.AUDIT && audit) found.push(audit);
      if (found.length === count) break;
    }
    return found;
  };
  it("bounds the bodies that a team makes it hold", async () => {
    const { teamBytes } = listenerBounds;
    const bytes = limits.checkpointBodyBytes;
    const head = [
      "POST /v1/checkpoint HTTP/1.1",
      "host: x",
      `x-lab-sandbox: ${id}`,
      `authorization: Bearer ${signToken(id)}`,
      `content-length: ${bytes}`,
    ];
    const begun = Buffer.concat([Buffer.from(`${head.join("\r\n")}\r\n\r\n`), Buffer.alloc(bytes - 1)]);
    let answers = "";
    const sockets = Array.from({ length: teamBytes / bytes + 20 }, () => {
      const socket = connect(caller.address).on("error", () => undefined);
      socket.on("data", (piece: Buffer) => (answers += piece.toString()));
      socket.write(begun);
      return socket;
    });
    await expect.poll(() => answers, { timeout: 20_000 }).toContain("requests under way hold");
    for (const socket of sockets) socket.destroy();
  });

  const told = ({ action, subject, result, detail }: AuditEvent) => [action, subject, result, detail];

  it("tells of checkpoints, restores and deletes, done and refused, also when nobody listened yet", async () => {
    const token = signToken(id, { jti: "token-1" });
    const ask = (method: string, path: string, body?: object) => caller.call(id, method, path, body, token);
    const { checkpoint_id: checkpoint } = (await ask("POST", "/v1/checkpoint", {})).body;
    expect((await ask("POST", "/v1/restore", { checkpoint_id: checkpoint })).status).toBe(200);
    expect((await ask("POST", "/v1/restore", { checkpoint_id: "x".repeat(100_000) })).status).toBe(404);
    expect((await ask("GET", "/v1/checkpoint/list")).status).toBe(200);
    const listening = audits(4);
    expect((await ask("DELETE", `/v1/checkpoint/${checkpoint}`)).status).toBe(200);
    const events = await listening;
    const of = `of sandbox ${id}`;
    expect(events.map(told).filter((_, index) => index !== 2)).toEqual([
      ["checkpoint.create", checkpoint, "ok", of],
      ["sandbox.restore", id, "ok", `from checkpoint ${checkpoint}`],
      ["checkpoint.delete", checkpoint, "ok", of],
    ]);
    expect(events[2]).toMatchObject({ action: "sandbox.restore", result: "not_found" });
    expect(events[2]?.detail.length).toBeLessThan(500);
    for (const { teamId, actor, requestId } of events)
      expect([teamId, actor, requestId]).toEqual(["team-t", "token:token-1", "req-lab"]);
  });

  it("parses no JSON that would stop the process for others", async () => {
    const ask = (more: unknown) => caller.call(id, "POST", "/v1/restore", { checkpoint_id: "ckpt-x", more });
    const [large, many] = [
      await ask("x".repeat(200_000)),
      await ask(Array.from({ length: 60_000 }, () => 0)),
    ];
    expect([large.status, large.body.message]).toEqual([
      413,
      expect.stringContaining("larger than 131072 bytes"),
    ]);
    expect([many.status, many.body.message]).toEqual([
      413,
      expect.stringContaining("more than 50000 values"),
    ]);
  });

  it("tells of nobody whose token is not good", async () => {
    expect((await caller.call(id, "POST", "/v1/checkpoint", {}, "rubbish")).status).toBe(401);
    expect((await caller.call(id, "POST", "/v1/checkpoint", {})).status).toBe(200);
    const [first] = await audits(1);
    expect(first).toMatchObject({ action: "checkpoint.create", result: "ok" });
  });

  it("names the methods of a known path, and takes none of its own paths for an id", async () => {
    const wrong = [
      ["DELETE", "/v1/checkpoint/list", "GET"],
      ["DELETE", "/v1/checkpoint/wait", "POST"],
      ["GET", "/v1/checkpoint", "POST"],
      ["GET", "/v1/checkpoint/ckpt-x", "DELETE"],
      ["PUT", "/v1/restore", "POST"],
    ] as const;
    for (const [method, path, allow] of wrong) {
      const { status, body, headers } = await caller.call(id, method, path);
      expect([method, path, status, body.code, headers.get("allow")]).toEqual([
        method,
        path,
        405,
        "unimplemented",
        allow,
      ]);
    }
    expect((await caller.call(id, "DELETE", "/v1/checkpoint/list", undefined, "rubbish")).status).toBe(401);
    for (const path of ["/v1/checkpoint/", "/v1/checkpoint/a/b", "/v1/restore/x"])
      expect((await caller.call(id, "DELETE", path)).status, path).toBe(404);
  });

  it("sleeps once for a wait, however short its interval, and answers 408 in the end", async () => {
    const wait = { checkpoint_id: "ckpt-none", poll_interval_ms: 10, timeout_secs: 1 };
    const { status, body } = await caller.call(id, "POST", "/v1/checkpoint/wait", wait);
    expect([status, body.code]).toEqual([408, "deadline_exceeded"]);
    // The host's watches sleep too, but longer.
    expect(sleeps.filter((ms) => ms <= 10)).toEqual([]);
    expect(body.details[0]).toMatchObject({ visible: false });
  });

  it("says nothing of a client that leaves a wait", async () => {
    const address = caller.address;
    const left = new Promise<void>((resolve) => {
      const headers = { authorization: `Bearer ${signToken(id)}`, "x-lab-sandbox": id };
      const asked = request({ ...address, path: "/v1/checkpoint/wait", method: "POST", headers });
      asked.on("error", () => undefined);
      asked.once("close", resolve);
      asked.end(JSON.stringify({ checkpoint_id: "ckpt-none", timeout_secs: 29 }));
      const whenWaiting = (): void => {
        if (sleeps.includes(29_000)) asked.destroy();
        else setImmediate(whenWaiting);
      };
      whenWaiting();
    });
    await left;
    // By the answer to a later request the end of the wait would be logged.
    await caller.call(id, "GET", "/v1/checkpoint/list");
    expect(logged).toEqual([]);
  });
});
