// docs/lifecycle.md shows the transition table as a picture. The picture is made from the table; this fails when it is not.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { sandboxStates, transitions, transitionTriggers } from "@cloche/protocol";
import { expect, test } from "vitest";

const document = join(import.meta.dirname, "..", "..", "docs", "lifecycle.md");
const short = (state: string): string => state.replace("SANDBOX_STATE_", "");

/** The transition table as Mermaid; `[*]` is before a sandbox exists and after it is gone. */
function diagram(): string {
  const arrows = sandboxStates.flatMap((from) =>
    transitionTriggers.flatMap((trigger) => {
      const to = transitions[from][trigger];
      return to === undefined ? [] : [`${short(from)} --> ${short(to)}: ${trigger}`];
    }),
  );
  return ["stateDiagram-v2", "[*] --> CREATING", ...arrows, "DELETING --> [*]"].join("\n    ");
}

test("the diagram in docs/lifecycle.md is the transition table", () => {
  const blocks = [...readFileSync(document, "utf8").matchAll(/```mermaid\n(.*?)\n```/gs)];
  expect(
    blocks.map(([, block]) => block),
    "replace the diagram by the one expected here",
  ).toEqual([diagram()]);
});
