import { ClocheApiError, type SandboxDataPlane } from "@cloche/sdk";
import type { EntryInfo } from "@cloche/protocol";
import { describe, expect, it } from "vitest";
import { HeldBytes } from "./held-bytes.ts";
import { Watchers } from "./watchers.ts";

const directory = { path: "/dir", is_dir: true, permissions: "0755", symlink_target: "" } as EntryInfo;

/** The data plane of a sandbox in which these files of /dir changed; `stat` answers of each path but /dir. */
function planeOf(names: readonly string[], stat: (path: string) => EntryInfo): SandboxDataPlane {
  const changed = names.map(
    (name) => `event: modified\ndata: ${JSON.stringify({ path: `/dir/${name}`, entry_type: "file" })}\n\n`,
  );
  const events = ["event: ready\ndata: {}\n\n", ...changed].join("");
  return {
    files: { stat: async (path: string) => (path === "/dir" ? directory : stat(path)) },
    dataPlane: { request: async () => new Response(events) },
  } as unknown as SandboxDataPlane;
}

const wish = { recursive: true, withEntries: true };

describe("watchers of a client that asks for entries", () => {
  it.each([404, 400])("tell of a change whose path leads nowhere by then (%i)", async (status) => {
    const plane = planeOf(["a", "b"], (path) => {
      if (path === "/dir/b") return { ...directory, path };
      throw new ClocheApiError("it is not there", { code: "unknown", status });
    });
    const watchers = new Watchers(plane, new HeldBytes(10_000));
    const id = await watchers.create("/dir", wish);
    const events = await watchers.take(id);
    expect(events).toEqual([
      { name: "a", type: "EVENT_TYPE_WRITE" },
      { name: "b", type: "EVENT_TYPE_WRITE", entry: expect.objectContaining({ path: "/dir/b" }) },
    ]);
    watchers.close();
  });

  it("hold events as long as there is memory for them, then end; what they held is free again", async () => {
    const names = Array.from({ length: 10 }, (_, at) => `${at}${"n".repeat(100)}`);
    const plane = planeOf(names, (path) => ({ ...directory, path }));
    const held = new HeldBytes(2_000);
    const watchers = new Watchers(plane, held);
    const [first, second] = [await watchers.create("/dir", wish), await watchers.create("/dir", wish)];
    expect((await watchers.take(first)).length + (await watchers.take(second)).length).toBeLessThan(10);
    await expect(watchers.take(first)).rejects.toMatchObject({ code: "data_loss" });
    const isFree = (): boolean => {
      const taken = held.take(2_000);
      if (taken) held.give(2_000);
      return taken;
    };
    await watchers.create("/dir", wish);
    await expect.poll(isFree).toBe(false);
    watchers.close();
    expect(isFree()).toBe(true);
  });
});
