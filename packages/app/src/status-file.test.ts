import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { AlreadyRunning, giveOrder, openControlSocket, pingControl, requestStop } from "./control-socket.ts";
import type { Orders } from "./orders.ts";
import { readStatus, type ServiceStatus, writeStatus } from "./status-file.ts";

let home = "";
beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "cloche-status-"));
});
afterEach(() => rm(home, { recursive: true, force: true }));

const status = (pid: number): ServiceStatus => ({
  gateway_url: "http://127.0.0.1:7080",
  edge_url: "https://127.0.0.1:7443",
  base_domain: "cloche.localhost",
  ca_cert: "/ca.pem",
  api_key: "key",
  runtime: "gvisor",
  emulated: false,
  version: "0.1.0",
  pid,
  ready: true,
});

describe("status file", () => {
  it("knows nothing before the first start", async () => {
    expect(await readStatus(home)).toBeUndefined();
  });

  it("does not call a process ready that is no service, though its pid lives", async () => {
    await writeStatus(home, status(process.pid));
    expect(await readStatus(home)).toMatchObject({ ready: false, pid: 0, runtime: "gvisor" });
  });
});

describe("control socket", () => {
  const waiting = (): string | undefined => undefined;
  const orders = (): Orders => ({ "prune-cache": async () => ({ removed: ["agent-old"], kept: 3 }) });

  it("passes orders of the operator on, and their failure", async () => {
    let away = false;
    const server = await openControlSocket(home, {
      stop: async () => undefined,
      waiting,
      orders: () => ({
        ...orders(),
        "adopt-orphan": async (fields) => {
          if (away) throw new Error("the host is away");
          return { id: fields.get("id"), team: fields.get("team") };
        },
      }),
    });
    const adopt = () => giveOrder(home, "adopt-orphan", { id: "sbx-1", team: "a & b" });
    expect(await adopt()).toEqual({ id: "sbx-1", team: "a & b" });
    expect(await giveOrder(home, "prune-cache")).toEqual({ removed: ["agent-old"], kept: 3 });
    away = true;
    await expect(adopt()).rejects.toThrow("the host is away");
    await expect(giveOrder(home, "rotate-signing-key")).rejects.toThrow("does not take the order");
    await new Promise((resolve) => server.close(resolve));
    expect(await adopt()).toBeUndefined();
  });

  it("is held by one service, stops it, and is free again", async () => {
    let stopped: { suspend: boolean } | undefined;
    const server = await openControlSocket(home, {
      async stop(options) {
        stopped = options;
      },
      waiting,
      orders,
    });
    await expect(
      openControlSocket(home, { stop: async () => undefined, waiting, orders }),
    ).rejects.toBeInstanceOf(AlreadyRunning);
    expect(await requestStop(home)).toBe(true);
    expect(stopped).toEqual({ suspend: true });
    await new Promise((resolve) => server.close(resolve));
    expect(await pingControl(home)).toBe(false);
    expect(await requestStop(home)).toBe(false);
  });

  it("prints what a stop under way waits for", async () => {
    const stop = Promise.withResolvers<void>();
    const said = vi.spyOn(console, "error").mockImplementation(() => undefined);
    const server = await openControlSocket(home, {
      stop: () => stop.promise,
      waiting: () => "pool: waits for an unmount (1 s)",
      orders,
    });
    const stopped = requestStop(home);
    await expect.poll(() => said.mock.calls).toEqual([["still stopping pool: waits for an unmount (1 s)"]]);
    stop.resolve();
    expect(await stopped).toBe(true);
    said.mockRestore();
    await new Promise((resolve) => server.close(resolve));
  });

  it("tells the operator why a stop failed", async () => {
    const server = await openControlSocket(home, {
      stop: () => Promise.reject(new Error("a disk is in use")),
      waiting,
      orders,
    });
    await expect(requestStop(home)).rejects.toThrow("a disk is in use");
    await new Promise((resolve) => server.close(resolve));
  });
});
