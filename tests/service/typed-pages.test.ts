// The pages of the documentation as a reader types them: every `sh` block, from the top of the page to its end, in one shell. What needs a
// terminal, a registry or a program that is not everywhere is a `console` block.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from "vitest";
import { repositoryRoot, runCommand, TestService } from "../fixtures/service.ts";

const { home, env: settings } = inject("service");
let service: TestService;
let folder = "";
beforeAll(async () => {
  service = await TestService.running(home, settings);
  folder = mkdtempSync(join(tmpdir(), "cloche-typed-"));
  for (const name of ["bin", ".ssh"]) mkdirSync(join(folder, name));
  writeFileSync(join(folder, ".ssh/config"), "", { mode: 0o600 });
  for (const [name, text] of Object.entries(readersPrograms()))
    writeFileSync(join(folder, "bin", name), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
});
afterAll(() => {
  for (const made of [folder, "/tmp/demo-repo"]) rmSync(made, { recursive: true, force: true });
});

const read = (page: string): string => readFileSync(join(repositoryRoot, page), "utf8");
const blocksOf = (page: string, language: string): string[] =>
  [...read(page).matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\``, "gm"))].map(
    ([, block = ""]) => block,
  );

/** The first block of the page defines what later pages use. */
const definesApi = "docs/data-plane.md";
const usesApi = new Set(["docs/files.md", "docs/processes.md"]);
/** This page makes `demo`; the others find it. */
const makesDemo = "docs/gateway.md";

/** A reader of a page has typed what it names: the sandbox, and the function of another page. */
function lessonOf(page: string): string {
  const before = page === makesDemo ? [] : ["npx cloche create --name demo"];
  if (usesApi.has(page)) before.push(blocksOf(definesApi, "sh")[0]?.split("\n").slice(0, 4).join("\n") ?? "");
  return [...before, ...blocksOf(page, "sh"), "npx cloche rm --wait demo"].join("\n");
}

/**
 * `npx` finds the checkout's command, also where another program runs it; `npm start` and `npm stop` mean the checkout. OpenSSH takes the home
 * from the list of users: its programs are given the reader's.
 */
const readersPrograms = (): Record<string, string> => ({
  npx: 'exec "$@"',
  npm: `PATH=\${PATH#*:}; cd ${repositoryRoot} && exec npm "$@"`,
  ssh: `PATH=\${PATH#*:}; exec ssh -F ${folder}/.ssh/config "$@"`,
  scp: `PATH=\${PATH#*:}; exec scp -F ${folder}/.ssh/config "$@"`,
});

/** Runs as typed in the reader's own folder, which is the reader's home too. */
const typeIn = ({ env }: TestService, lines: string) =>
  runCommand("bash", ["-euxo", "pipefail", "-c", `${lines}\nwait`], {
    env: {
      ...env,
      HOME: folder,
      PATH: `${join(folder, "bin")}:${join(repositoryRoot, "node_modules/.bin")}:${env["PATH"]}`,
    },
    cwd: folder,
    deadlineMs: 240_000,
  });
const type = (lines: string) => typeIn(service, lines);

describe("typed from top to bottom", () => {
  test.each([
    makesDemo,
    definesApi,
    "docs/files.md",
    "docs/processes.md",
    "docs/services.md",
    "docs/time-travel.md",
    "docs/ssh.md",
    "docs/network.md",
    "docs/e2b.md",
  ])("%s", async (page) => {
    expect(blocksOf(page, "sh").length).toBeGreaterThan(0);
    // A page that fails leaves its sandbox: the next one makes its own.
    onTestFinished(async () => void (await type("npx cloche rm demo || true")));
    const { code, stdout, stderr } = await type(lessonOf(page));
    expect(code, `${stdout}\n${stderr}`).toBe(0);
    // curl succeeds with any status: an error of the service is a JSON object with a code and a message.
    expect(stdout).not.toMatch(/\{"code":"[a-z_]+","message"/);
    expect(stdout).not.toMatch(/^null$/m);
    expect(stdout).not.toContain('"exit_code":127');
    expect(stdout).not.toContain('"exit_code": 127');
  });

  test("docs/operations.md and its tasks, on a service of its own", async () => {
    const own = await TestService.create({});
    onTestFinished(async () => expect(await own.destroy()).toEqual([]));
    await own.start();
    const backups = join(folder, "backups");
    mkdirSync(backups);
    const pages = [
      "docs/operations.md",
      ...["watch", "back-up", "upgrade", "repair"].map((task) => `docs/operations/${task}.md`),
    ];
    const [first = "", ...others] = pages.flatMap((page) => blocksOf(page, "sh"));
    // One sandbox that the backup knows, and one that it does not.
    const lines = [first, "npx cloche create --name early", ...others].join("\n");
    const typed = lines
      .replace("npm stop\nmkdir", "npx cloche create --name late\nnpm stop\nmkdir")
      .replaceAll("/var/lib/cloche", own.home)
      .replaceAll("/var/backups", backups);
    const { code, stdout, stderr } = await typeIn(own, typed);
    expect(code, `${stdout}\n${stderr}`).toBe(0);
    // The service's part of the status and the team's are one table.
    expect(stdout).toMatch(/^version {4}\S.*\nsandboxes {2}\S/m);
    const [orphan, ...rest] = JSON.parse((await typeIn(own, "npx cloche orphans --json")).stdout).orphans;
    expect(rest).toEqual([]);
    const adopt = `npx cloche orphans adopt ${orphan.id}\nnpx cloche ls\nnpx cloche exec early -- true`;
    expect((await typeIn(own, adopt)).stdout).toMatch(/early/);
    expect((await typeIn(own, `npx cloche exec ${orphan.id} -- echo adopted`)).stdout).toContain("adopted");
  });

  test("docs/cli.md: each command of its blocks is one that there is", async () => {
    const commands = blocksOf("docs/cli.md", "sh").join("\n");
    const known = (await type("cloche __complete ''")).stdout.split("\n").map((line) => line.split("\t")[0]);
    for (const [, word] of commands.matchAll(/(?:^|\$\()cloche ([a-z-]+)/gm)) expect(known).toContain(word);
  });

  test("no page has a placeholder or a name of its own for the service's methods in what is typed", () => {
    for (const page of ["README.md", "docs/tour.md", makesDemo, definesApi, ...usesApi, "docs/services.md"]) {
      expect(blocksOf(page, "sh").join("\n"), page).not.toMatch(/(sbx|ckpt|proc)-…/);
      expect(read(page).replace("`svc.public.v1.SandboxService` is the same", ""), page).not.toContain(
        "svc.public.v1",
      );
    }
  });
});
