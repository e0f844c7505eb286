import { createServer, type Server, type Socket } from "node:net";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, it } from "vitest";
import { SentryControl } from "./sentry-control.ts";

const dir = mkdtempSync(join(tmpdir(), "sentry-"));
let server: Server | undefined;
let control: SentryControl | undefined;
afterEach(() => {
  control?.close();
  server?.close();
});
process.on("exit", () => rmSync(dir, { recursive: true, force: true }));

let sockets = 0;
async function sentry(
  answer: (request: { method: string; arg: unknown }, socket: Socket) => void,
): Promise<SentryControl> {
  const path = join(dir, `${(sockets += 1)}.sock`);
  server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.on("data", (text) => answer(JSON.parse(text.toString()), socket));
  });
  await new Promise<void>((resolve) => server?.listen(path, resolve));
  control = new SentryControl(path, "u1");
  return control;
}
const said = (result: unknown): string => JSON.stringify({ success: true, err: "", result });

it("reads a list that comes in parts, and drops what is no process", async () => {
  const process = { pid: 1, ppid: 0, pgid: 1, cmd: 'a "}' };
  const asked: unknown[] = [];
  const it = await sentry((request, socket) => {
    asked.push(request);
    const text = said([process, { pid: "2" }, null]);
    const half = text.indexOf("}") + 1;
    socket.write(text.slice(0, half));
    setImmediate(() => socket.write(text.slice(half)));
  });
  expect(await it.processes()).toEqual([process]);
  expect(asked).toEqual([{ method: "containerManager.Processes", arg: "u1" }]);
});

it("kills by pid and by group; one that is gone is no failure", async () => {
  const args: unknown[] = [];
  const it = await sentry(({ arg }, socket) => {
    args.push(arg);
    socket.write(JSON.stringify({ success: false, err: "no such process" }));
  });
  await it.kill(5);
  await it.killGroup(6);
  expect(args).toEqual([
    { CID: "u1", Signo: 9, PID: 5, Mode: 0 },
    { CID: "u1", Signo: 9, PID: 6, Mode: 3 },
  ]);
});

it("has the sentry collect", async () => {
  const asked: unknown[] = [];
  const it = await sentry((request, socket) => {
    asked.push(request);
    socket.write(said({}));
  });
  await it.collect();
  expect(asked).toEqual([{ method: "Usage.Reduce", arg: { wait: false, do_not_gc: false } }]);
});

it("fails when the sentry ends, then and later", async () => {
  const it = await sentry((_request, socket) => socket.destroy());
  await expect(it.kill(5)).rejects.toThrow("closed its control socket");
  await expect(it.kill(6)).rejects.toThrow("closed its control socket");
});

it("fails when the answer has no end", async () => {
  const it = await sentry((_request, socket) => socket.write("[".repeat(5 * 1024 * 1024)));
  await expect(it.processes()).rejects.toThrow("too long");
});
