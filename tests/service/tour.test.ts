// The README and docs/tour.md as a newcomer follows them: command blocks and clients run as they stand, start to stop.
import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { emptyInventory, grown, inventory } from "../fixtures/inventory.ts";
import {
  type CommandResult,
  repositoryRoot,
  runCommand,
  startService,
  type TestService,
} from "../fixtures/service.ts";

const readme = readFileSync(join(repositoryRoot, "README.md"), "utf8");
const tourPage = readFileSync(join(repositoryRoot, "docs/tour.md"), "utf8");
let service: TestService;
beforeAll(async () => {
  service = await startService();
});
afterAll(async () => {
  expect(await service?.destroy()).toEqual([]);
});

/** The code blocks of one language below a heading, up to the next heading of its rank. */
function blocks(heading: string, language: string, page = readme): string[] {
  const section = new RegExp(`^## ${heading}\\n([^]*?)(?=^## |(?![^]))`, "m").exec(page)?.[1] ?? "";
  return [...section.matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\``, "gm"))].map(
    (match) => match[1] ?? "",
  );
}

/** Runs shell lines as typed, stopping at the first that fails. */
const type = (lines: string): Promise<CommandResult> =>
  runCommand("bash", ["-euxo", "pipefail", "-c", lines], { env: service.env, deadlineMs: 300_000 });

/** The service runs, and the runner has installed the packages. */
const withoutStart = (block: string): string =>
  block.replaceAll(/^(npm (start|stop)|apt-get install) .*$/gm, "");

describe("the README and the tour", () => {
  const tour = [
    ...blocks("Five minutes", "sh"),
    ...blocks("A database and a web server", "sh", tourPage),
    ...blocks("A machine forked while it runs", "sh", tourPage),
    ...blocks("A build that outlives everything", "sh", tourPage),
    ...blocks("With the tools you have", "sh", tourPage),
  ];

  test("have six blocks and a client from the contract alone", () => {
    expect(tour.length).toBe(6);
    expect(blocks("From the contract alone", "python")).toHaveLength(1);
  });

  test("create, write, run, read, delete", async () => {
    const result = await type(withoutStart(tour[0] ?? ""));
    expect(result.code, result.stderr).toBe(0);
    expect(result.stdout).toContain("42\n");
    expect(result.stdout).toContain("hello from inside\n");
    expect(readFileSync("/tmp/back.py", "utf8")).toBe(readFileSync("/tmp/hello.py", "utf8"));
  });

  test("services and time travel", async () => {
    const result = await type(withoutStart(tour[1] ?? ""));
    expect(result.code, result.stderr).toBe(0);
  });

  test("a database in a container, a migration and a web server that needs both", async () => {
    rmSync("/tmp/redis", { recursive: true, force: true });
    const { code, stdout, stderr } = await type(withoutStart(tour[2] ?? ""));
    expect(code, stdout + stderr).toBe(0);
    const lines = stdout.split("\n");
    expect(lines).toEqual(expect.arrayContaining(["101", "the database is gone", "102"]));
    expect(stdout).toMatch(/^db +failed +was ended by signal 9$/m);
    expect(stdout).toMatch(/"GET \/ HTTP\/1.1" 200/); // the log that was followed
    expect(stdout).toMatch(/^db +running .*\nmigration +stopped .*\nweb +running /m);
    rmSync("/tmp/redis", { recursive: true, force: true });
  });

  test("a counter, forked while it counts, through the death of the service", async () => {
    const { code, stdout, stderr } = await type(tour[3] ?? "");
    expect(code, stdout + stderr).toBe(0);
    const counts = stdout.split("\n").filter((line) => /^\d+$/.test(line));
    expect(counts).toHaveLength(8);
    const [source = 0, , , , , last = 0, lastAgain = 0, resumed = 0] = counts.map(Number);
    expect(source).toBeGreaterThan(0);
    expect(lastAgain).toBeGreaterThan(last);
    expect(resumed).toBeGreaterThanOrEqual(source);
  });

  test("a detached build through a suspend and the death of the service", async () => {
    const { code, stdout, stderr } = await type(tour[4] ?? "");
    expect(code, stdout + stderr).toBe(0);
    const steps = stdout.split("\n").filter((line) => line.startsWith("step "));
    expect(steps).toEqual([1, 2, 3, 4, 5, 6].map((step) => `step ${step}`));
    expect(stdout).toContain("it ended with 7\n");
  });

  test("OpenSSH, git, rsync and a watch with a sandbox", async () => {
    const { code, stdout, stderr } = await type(withoutStart(tour[5] ?? ""));
    expect(code, stdout + stderr).toBe(0);
    expect(stdout).toMatch(/^<h1>on my desk<\/h1>$/m);
    expect(stdout).toMatch(/^renamed .* → \/srv\/www\/index.html$/m);
    for (const left of ["desk.config", "desk.changes", "site"])
      rmSync(join("/tmp", left), { recursive: true, force: true });
  });

  test("the Python client of the standard library", async () => {
    const result = await runCommand("python3", ["-"], {
      env: service.env,
      input: blocks("From the contract alone", "python")[0] ?? "",
    });
    expect(result.code, result.stderr).toBe(0);
    expect(result.stdout).toBe("42\n\n");
  });

  test("the TypeScript client", async () => {
    const source = blocks("From the contract alone", "ts")[0] ?? "";
    const program = `${source}\nif (stdout !== "42\\n") throw new Error(JSON.stringify(stdout));`;
    const words = [join(repositoryRoot, "scripts/node.sh"), "--input-type=module-typescript", "-"];
    const result = await runCommand("sh", words, { env: service.env, input: program });
    expect(result.code, result.stderr).toBe(0);
  });
});

test("the curl that the start prints works as it stands", async () => {
  await service.stop();
  const started = await runCommand("npm", ["start", "--", "--detach"], {
    env: service.env,
    deadlineMs: 300_000,
  });
  expect(started.code, started.stderr).toBe(0);
  const printed = started.stdout + started.stderr;
  expect(printed).toContain(service.status.gateway_url);
  expect(printed).toContain("ca.pem");
  const curl = /^\s*(curl [^]*?[^\\])$/m.exec(printed)?.[1];
  expect(curl, printed).toBeDefined();
  const answer = await type(curl ?? "false");
  expect(answer.code, answer.stderr).toBe(0);
  expect(JSON.parse(answer.stdout)).toEqual(expect.any(Object));
});

test("npm stop leaves nothing running and nothing mounted", async () => {
  const stopped = await runCommand("npm", ["stop"], { env: service.env, deadlineMs: 300_000 });
  expect(stopped.code, stopped.stderr).toBe(0);
  expect(grown(emptyInventory, inventory(service.home))).toEqual([]);
});
