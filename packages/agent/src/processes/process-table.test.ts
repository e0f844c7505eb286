import { randomBytes } from "node:crypto";
import { limits } from "@cloche/protocol";
import { expect, it } from "vitest";
import type { Guest, GuestProcess } from "../spawner/index.ts";
import { ProcessTable } from "./process-table.ts";
import { readStartRequest } from "./start-request.ts";

it("refuses those of 10,000 processes for which there is no room while all others run", async () => {
  const forever = new Promise<never>(() => undefined);
  const running = { pid: 1, exited: forever, ended: forever, outOfMemory: false } as Partial<GuestProcess>;
  let launched = 0;
  const guest = {
    launch(_request: unknown, onStarted?: () => void) {
      launched += 1;
      if (onStarted) queueMicrotask(onStarted);
      return running as GuestProcess;
    },
  } as unknown as Guest;
  const table = new ProcessTable({ randomBytes, nowMs: () => 0, onActivity: () => undefined });
  const request = readStartRequest({ cmd: ["sleep", "100"] }, {});
  const starts = await Promise.allSettled(Array.from({ length: 10_000 }, () => table.start(guest, request)));
  const refused = starts.filter((one) => one.status === "rejected");
  expect(refused).toHaveLength(10_000 - limits.processesPerSandbox);
  expect(refused[0]?.reason).toMatchObject({ code: "resource_exhausted", resource: "quota" });
  expect([launched, table.list().length]).toEqual([limits.processesPerSandbox, limits.processesPerSandbox]);
});
