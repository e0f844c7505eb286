import type { EntryInfo } from "@cloche/protocol";
import { expect, it } from "vitest";
import type { OpenSandbox } from "./sandboxes.ts";
import type { Account } from "./accounts.ts";
import { listDir } from "./filesystem-service.ts";
import { HeldBytes } from "./held-bytes.ts";

const links = 2_000;
const entry = (path: string, more: Partial<EntryInfo> = {}): EntryInfo =>
  ({ path, is_dir: false, size: 0, permissions: "0777", symlink_target: "", ...more }) as EntryInfo;

it("a list of many links asks the sandbox a few times, not for each link", async () => {
  const kinds = ["file", "directory", ""] as const;
  const entries = Array.from({ length: links }, (_, at) =>
    entry(`/dir/${at}`, { symlink_target: "x", target_type: kinds[at % 3] as "file" }),
  );
  let calls = 0;
  const plane = {
    files: {
      async stat(path: string) {
        calls += 1;
        return entry(path, { is_dir: true });
      },
    },
    dataPlane: {
      async request() {
        calls += 1;
        return new Response(JSON.stringify({ entries, truncated: false }));
      },
    },
  };
  const sandbox = { plane, held: new HeldBytes(10_000_000) } as unknown as OpenSandbox;
  let turns = 0;
  const turn = (): void => void ((turns += 1), (next = setImmediate(turn)));
  let next = setImmediate(turn);
  const answered = await listDir(sandbox, { path: "/dir" }, {
    name: "user",
    home: "/home/user",
  } as unknown as Account);
  const types = (answered["entries"] as { type: string }[]).map(({ type }) => type);
  expect(types).toHaveLength(links);
  expect(types.slice(0, 3)).toEqual(["FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_SYMLINK"]);
  expect(calls).toBeLessThan(4);
  clearImmediate(next);
  expect(turns, "others are served meanwhile").toBeGreaterThan(links / 200);
});
