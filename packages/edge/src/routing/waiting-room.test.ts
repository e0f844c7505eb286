import { expect, test } from "vitest";
import { edgeLimits } from "../edge-limits.ts";
import { WaitingRoom } from "./waiting-room.ts";

const forever = (): Promise<never> => new Promise(() => undefined);
const now = async (): Promise<string> => "waited";
const of = (teamId: string, sandboxId: string) => ({ teamId, sandboxId });

test("each sandbox and each team has its own places, and visitors theirs", async () => {
  const limits = { waitingOfSandbox: 2, waitingOfTeam: 3, visitorsOfSandbox: 1, visitorsOfTeam: 2 };
  const room = new WaitingRoom({ ...edgeLimits, ...limits });
  void room.within(of("t", "a"), "bearer", forever);
  void room.within(of("t", "a"), "bearer", forever);
  await expect(room.within(of("t", "a"), "bearer", now)).rejects.toThrow("for sandbox a to wake");
  void room.within(of("t", "b"), "bearer", forever);
  await expect(room.within(of("t", "c"), "bearer", now)).rejects.toThrow("sandboxes of this team");
  expect(await room.within(of("u", "d"), "bearer", now)).toBe("waited");
  void room.within(of("t", "a"), "visitor", forever);
  await expect(room.within(of("t", "a"), "visitor", now)).rejects.toThrow("at most 1");
  expect(await room.within(of("t", "b"), "visitor", now)).toBe("waited");
});

test("a place is given back by a wait that ended or failed, and nothing of it is kept", async () => {
  const room = new WaitingRoom({ ...edgeLimits, waitingOfSandbox: 1 });
  await room.within(of("t", "a"), "bearer", now);
  await expect(room.within(of("t", "a"), "bearer", () => Promise.reject(new Error("no")))).rejects.toThrow(
    "no",
  );
  expect(await room.within(of("t", "a"), "bearer", now)).toBe("waited");
  expect(room.size).toBe(0);
});
