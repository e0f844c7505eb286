// Egress policies through the public API, with real packets: a namespace beside the host plays the internet, with two public
// addresses and a name server that the service is told to ask.
import { afterAll, beforeAll, describe, expect, onTestFailed, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { Client, eventually } from "../fixtures/client.ts";
import { Outside } from "../fixtures/outside.ts";
import { startService, type TestService } from "../fixtures/service.ts";
import { run } from "../../packages/base/src/commands/run.ts";

const { PUBLIC, OTHER } = Outside;
let outside: Outside;
let service: TestService;
let client: Client;

beforeAll(async () => {
  outside = await Outside.open();
  await outside.serve("0.0.0.0", 80);
  await outside.serve(PUBLIC, 53, "dns");
  service = await startService({ env: { CLOCHE_DNS_SERVERS: PUBLIC } });
  client = new Client(service.target());
});
afterAll(async () => {
  await client?.close().catch(() => undefined);
  const left = await service?.destroy();
  await outside?.close();
  expect(left).toEqual([]);
});

/** Whether a server is reached, by name or address. A policy is in force when the call that set it answers. */
async function reaches(sandbox: TestSandbox, host: string): Promise<boolean> {
  const line = `exec 3<>/dev/tcp/${host}/80 && head -n1 <&3`;
  const { stdout } = await client.exec(sandbox, ["timeout", "20", "bash", "-c", line]);
  return stdout.trim() !== "";
}
/** On a busy machine a look-up may be late once. */
const comesToReach = (sandbox: TestSandbox, host: string): Promise<boolean> =>
  eventually(
    () => reaches(sandbox, host),
    (seen) => seen,
    60_000,
  );
const setEgress = (id: string, egress: object) => client.gateway("UpdateSandbox", { id, egress });
const list = (...domains: string[]) => ({ mode: "allow", domains, cidrs: [] });
const comesTo = async (id: string, state: string) => {
  const look = async () =>
    (await client.gateway<{ sandbox: { state: string } }>("GetSandbox", { id })).sandbox.state;
  expect(await eventually(look, (seen) => seen === state, 60_000)).toBe(state);
};

/** The marks of machines whose connections the router counts to a team. */
async function countedToTeams(): Promise<number[]> {
  const argv = ["ip", "netns", "exec", `cloche-${service.tag}`, "nft", "-j", "list", "map", "inet", "cloche"];
  const { nftables } = JSON.parse((await run([...argv, "teams"] as [string])).stdout) as {
    nftables: { map?: { elem?: [string, number][] } }[];
  };
  return nftables.flatMap(({ map }) => (map?.elem ?? []).map(([, mark]) => Number(mark)));
}

describe("egress", () => {
  let sandbox: TestSandbox;

  test("is open to the public internet by default", async () => {
    onTestFailed(() => console.error(service.logTail()));
    sandbox = await client.create();
    expect(await comesToReach(sandbox, PUBLIC)).toBe(true);
    expect(await comesToReach(sandbox, "www.good.test")).toBe(true);
  });

  test("none cuts it, an allow-list opens what it names and nothing else, and the owner is told", async () => {
    await setEgress(sandbox.id, { mode: "none" });
    expect(await reaches(sandbox, PUBLIC)).toBe(false);
    await setEgress(sandbox.id, { mode: "allow", domains: [], cidrs: [`${OTHER}:80`] });
    expect(await comesToReach(sandbox, OTHER)).toBe(true);
    expect(await reaches(sandbox, PUBLIC)).toBe(false);
    await setEgress(sandbox.id, list("*.good.test:80"));
    expect(await reaches(sandbox, PUBLIC), "before its name was asked for").toBe(false);
    expect(await comesToReach(sandbox, "www.good.test")).toBe(true);
    expect(await comesToReach(sandbox, "alias.good.test")).toBe(true);
    expect(await reaches(sandbox, "private.good.test"), "a private address").toBe(false);
    expect(await reaches(sandbox, "www.evil.test")).toBe(false);
    const { recent_denials, denied_packets } = await client.gateway<{
      denied_packets: number;
      recent_denials: { destination: string }[];
    }>("GetSandboxEgress", { id: sandbox.id });
    expect(denied_packets).toBeGreaterThan(0);
    expect(recent_denials.map(({ destination }) => destination)).toEqual(
      expect.arrayContaining(["www.evil.test", "private.good.test", PUBLIC]),
    );
  });

  test("holds through suspend and resume, in a fork, and over kill -9 of the service", async () => {
    onTestFailed(() => console.error(service.logTail()));
    await setEgress(sandbox.id, list("www.good.test"));
    const made = await client.gateway<{ sandbox: { id: string; domain: string }; data_plane_token: string }>(
      "ForkSandbox",
      { source_sandbox_id: sandbox.id },
    );
    client.session.adopt(made.sandbox.id);
    await comesTo(made.sandbox.id, "SANDBOX_STATE_RUNNING");
    const { domain } = (
      await client.gateway<{ sandbox: { domain: string } }>("GetSandbox", { id: made.sandbox.id })
    ).sandbox;
    const fork = { id: made.sandbox.id, domain, token: made.data_plane_token };
    expect(await reaches(fork, "www.evil.test")).toBe(false);
    expect(await comesToReach(fork, "www.good.test")).toBe(true);
    expect(await reaches(fork, OTHER)).toBe(false);

    await client.gateway("SuspendSandbox", { id: sandbox.id });
    await comesTo(sandbox.id, "SANDBOX_STATE_SUSPENDED");
    await setEgress(sandbox.id, list("more.good.test"));
    await client.gateway("ResumeSandbox", { id: sandbox.id });
    await comesTo(sandbox.id, "SANDBOX_STATE_RUNNING");
    expect(await reaches(sandbox, "www.good.test"), "changed while suspended").toBe(false);
    expect(await comesToReach(sandbox, "more.good.test")).toBe(true);
    expect(await reaches(sandbox, OTHER)).toBe(false);

    // Made ahead, forked, resumed: each machine is counted to its team.
    const marks = await countedToTeams();
    expect([marks.length, new Set(marks).size]).toEqual([2, 1]);

    await service.kill9();
    await service.start();
    expect(await countedToTeams()).toEqual(marks);
    expect(await reaches(sandbox, "www.good.test")).toBe(false);
    expect(await comesToReach(sandbox, "more.good.test")).toBe(true);
    expect(await reaches(fork, "more.good.test")).toBe(false);
    expect(await comesToReach(fork, "www.good.test")).toBe(true);

    await service.stop();
    await service.start();
    await comesTo(sandbox.id, "SANDBOX_STATE_RUNNING");
    expect(await reaches(sandbox, OTHER), "after npm stop and start").toBe(false);
    expect(await comesToReach(sandbox, "more.good.test")).toBe(true);
  });
});
