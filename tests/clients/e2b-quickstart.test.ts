// E2B's quickstarts as its packages bring them, unchanged, in both languages and both set-ups, the ten lines of docs/e2b.md, and our cases
// through E2B's Python client.
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { pythonWithTools, succeeded } from "../fixtures/python-tools.ts";
import { repositoryRoot, TestService } from "../fixtures/service.ts";
import { startWildcardDns, type WildcardDns } from "../fixtures/wildcard-dns.ts";

const { home, env: serviceEnv, baseDomain } = inject("service");
const { PATH = "" } = process.env;
let folder = "";
let python = "";
let dns: WildcardDns;
/** Set-up B: addresses of the loopback; set-up A: a domain with wildcard DNS and the service's authority. */
const setups: Record<string, NodeJS.ProcessEnv> = {};

beforeAll(async () => {
  const { status } = await TestService.running(home, serviceEnv);
  const { api_url = "", sandbox_url = "", api_key = "" } = status.e2b ?? {};
  folder = mkdtempSync(join(tmpdir(), "cloche-e2b-"));
  symlinkSync(join(repositoryRoot, "node_modules"), join(folder, "node_modules"));
  python = await pythonWithTools(join(repositoryRoot, "tests/fixtures/e2b-requirements.txt"));
  dns = await startWildcardDns(baseDomain);
  const common = { PATH, HOME: folder, PYTHONDONTWRITEBYTECODE: "1", E2B_API_KEY: api_key };
  setups["addresses"] = { ...common, E2B_API_URL: api_url, E2B_SANDBOX_URL: sandbox_url };
  const { port } = new URL(status.edge_url);
  const trust = { NODE_EXTRA_CA_CERTS: status.ca_cert, SSL_CERT_FILE: status.ca_cert };
  setups["domain"] = { ...common, ...trust, E2B_DOMAIN: port === "" ? baseDomain : `${baseDomain}:${port}` };
});
afterAll(() => {
  dns?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Runs a program of theirs; names are resolved by wildcard DNS. */
function run(program: string, words: string[], setup: string): Promise<string> {
  const [command, all] = dns.within(program, words);
  return succeeded(command, all, { env: setups[setup] ?? {}, cwd: folder });
}

const block = (text: string, language: string, words: string): string => {
  const blocks = [...text.matchAll(new RegExp(`\`\`\`${language}\\n([^]*?)\`\`\``, "g"))].map(
    ([, code]) => code ?? "",
  );
  const found = blocks.find((code) => code.includes(words));
  if (found === undefined) throw new Error(`no ${language} block with ${words}`);
  return found;
};

const javascript = (): string =>
  block(readFileSync(join(repositoryRoot, "node_modules/e2b/README.md"), "utf8"), "ts", "commands.run");
function pythonQuickstart(): string {
  const site = join(dirname(dirname(python)), "lib");
  const packages =
    readdirSync(site)
      .map((name) => join(site, name, "site-packages"))
      .find(existsSync) ?? "";
  const info = readdirSync(packages).find((name) => /^e2b-[\d.]+\.dist-info$/.test(name)) ?? "";
  return block(readFileSync(join(packages, info, "METADATA"), "utf8"), "py", "commands.run");
}

test.each(["addresses", "domain"])("the JavaScript quickstart runs by %s", async (setup) => {
  const file = join(folder, "quickstart.mjs");
  writeFileSync(file, javascript());
  expect(await run(process.execPath, [file], setup)).toBe("Hello from E2B!\n\n");
});

/** What streams in both directions, ends early, or is cut: by the domain that is HTTP/2, at the edge. */
const byDomain = `
import { Sandbox, TimeoutError } from "e2b";
import { setTimeout as sleep } from "node:timers/promises";
const sandbox = await Sandbox.create({ timeoutMs: 300_000 });
const size = 5_000_000;
const content = new Blob(["x".repeat(size)]).stream();
await sandbox.files.write("big", content);
console.log((await sandbox.files.read("big", { format: "bytes" })).length === size);
const metadata = { author: "mish" };
console.log((await sandbox.files.write("told", "1", { metadata })).metadata?.author, (await sandbox.files.getInfo("told")).metadata?.author);
console.log(await (await fetch(await sandbox.downloadUrl("/etc/hostname"))).text() === await sandbox.files.read("/etc/hostname"));
const cat = await sandbox.commands.run("cat", { background: true, stdin: true });
await cat.sendStdin("through");
await cat.closeStdin();
console.log((await cat.wait()).stdout);
const seen = [];
const watch = await sandbox.files.watchDir(".", ({ type, name }) => seen.push(type + " " + name));
await sandbox.files.write("new", "1");
for (let n = 0; n < 300 && !seen.includes("write new"); n++) await sleep(100);
console.log(seen.includes("write new"));
await watch.stop();
await sandbox.commands.run("echo served > index.html; python3 -m http.server 8000", { background: true });
let served = "";
for (let n = 0; n < 300 && served === ""; n++) {
  const answer = await fetch("https://" + sandbox.getHost(8000) + "/index.html").catch(() => undefined);
  if (answer?.ok) served = await answer.text();
  else await sleep(100);
}
console.log(served.trim());
const sleeper = await sandbox.commands.run("sleep 600", { background: true });
await sandbox.kill();
console.log(await sleeper.wait().catch((error) => error instanceof TimeoutError));
`;

test("files, input, watches, ports and a kill work by domain", async () => {
  const file = join(folder, "by-domain.mjs");
  writeFileSync(file, byDomain);
  expect(await run(process.execPath, [file], "domain")).toBe(
    "true\nmish mish\ntrue\nthrough\ntrue\nserved\ntrue\n",
  );
});

/** An open stream does not keep a paused sandbox awake; who visits a port of one of auto-resume wakes it. */
const pausedWithStream = `
import { Sandbox } from "e2b";
import { setTimeout as sleep } from "node:timers/promises";
const sandbox = await Sandbox.create({ timeoutMs: 300_000, lifecycle: { onTimeout: "pause", autoResume: true } });
const server = await sandbox.commands.run("cd /etc; python3 -m http.server 8000", { background: true });
const visit = () => fetch("https://" + sandbox.getHost(8000) + "/hostname").catch(() => undefined);
for (let n = 0; n < 300 && !(await visit())?.ok; n++) await sleep(100);
await sandbox.pause();
console.log(await server.wait().then(() => "ended", () => "cut"));
await sleep(1_500);
console.log((await sandbox.getInfo()).state);
console.log((await visit()).status, (await sandbox.getInfo()).state);
await sandbox.kill();
`;

test("a paused sandbox stays so beside an open stream, and wakes for a visitor", async () => {
  const file = join(folder, "paused.mjs");
  writeFileSync(file, pausedWithStream);
  expect(await run(process.execPath, [file], "domain")).toBe("cut\npaused\n200 running\n");
});

test("the Python quickstart runs by addresses", async () => {
  expect(await run(python, ["-c", pythonQuickstart()], "addresses")).toBe("Hello from E2B!\n\n");
});

test("the ten lines of docs/e2b.md run in both languages", async () => {
  const page = readFileSync(join(repositoryRoot, "docs/e2b.md"), "utf8");
  const file = join(folder, "ten-lines.mjs");
  const script = block(page, "js", "e2b");
  expect(script.trim().split("\n").filter(Boolean).length).toBeLessThanOrEqual(10);
  writeFileSync(file, script);
  expect(await run(process.execPath, [file], "addresses")).toBe("45\n\n");
  const lines = block(page, "python", "e2b");
  expect(lines.trim().split("\n").filter(Boolean).length).toBeLessThanOrEqual(10);
  expect(await run(python, ["-c", lines], "addresses")).toBe("45\n\n");
});

test("our cases pass through E2B's Python client, both faces", async () => {
  const cases = join(repositoryRoot, "tests/fixtures/e2b-cases.py");
  expect(await run(python, [cases], "addresses")).toBe("");
});
