// The session that docs/mcp.md shows, played again against a real service: every call of docs/examples/mcp-session.json must answer
// what was recorded. `CLOCHE_RECORD_SESSION=1` records the answers anew.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, inject, onTestFinished, test } from "vitest";
import { called, connectHttp } from "../fixtures/mcp-client.ts";
import { readSession, sessionFile, SessionNames, shownSession, steady } from "../fixtures/mcp-session.ts";
import { repositoryRoot } from "../fixtures/service.ts";

const { home, target } = inject("service");
const { mcp_url: url } = JSON.parse(readFileSync(join(home, "run/status.json"), "utf8")) as {
  mcp_url: string;
};
const records = process.env["CLOCHE_RECORD_SESSION"] === "1";

test("the recorded session answers again what it answered", async () => {
  const session = readSession();
  const client = await connectHttp(url, target.apiKey);
  const names = new SessionNames();
  onTestFinished(async () => {
    for (const sandbox of names.ids)
      await client.callTool({ name: "delete_sandbox", arguments: { sandbox } });
    await client.close();
  });
  for (const step of session.steps) {
    const answer = await called(client, step.tool, names.filled(step.arguments));
    names.learn(step.capture, answer);
    if (records) step.answer = names.named(answer);
    expect(steady(names.named(answer)), `${step.tool} ${JSON.stringify(step.arguments)}`).toEqual(
      steady(step.answer),
    );
  }
  if (records) writeFileSync(sessionFile, `${JSON.stringify(session, null, 2)}\n`);
});

test("docs/mcp.md shows it as it was recorded", () => {
  const page = readFileSync(join(repositoryRoot, "docs/mcp.md"), "utf8");
  const [, shown = ""] = /## A recorded session\n[^]*?```text\n([^]*?)\n```/.exec(page) ?? [];
  expect(shown).toBe(shownSession(readSession()));
});
