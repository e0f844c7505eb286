// A fork of a suspended sandbox whose host is cordoned, then lost: it runs on another host, with the memory that is in storage.
import { expect, it } from "vitest";
import { leaveSleeping } from "../fixtures/background.ts";
import { eventually } from "../fixtures/client.ts";
import type { Client } from "../fixtures/client.ts";
import { type Seen, theCluster } from "./cluster.ts";

const cluster = theCluster();
const { lab } = cluster;
const FORKED_MS = 90_000;
type Made = Awaited<ReturnType<Client["create"]>>;

/** Asks until the gateway that is asked knows what became of the host. */
async function forkOf(id: string): Promise<Made> {
  const { client } = cluster;
  const ask = () =>
    client
      .gateway<{ sandbox: Seen; data_plane_token: string }>("ForkSandbox", { source_sandbox_id: id })
      .catch(String);
  const answer = await eventually(ask, (one) => typeof one !== "string", FORKED_MS);
  if (typeof answer === "string") throw new Error(answer);
  client.session.adopt(answer.sandbox.id);
  const state = () => cluster.get(answer.sandbox).then((one) => one.state);
  expect(await eventually(state, (one) => one !== "SANDBOX_STATE_CREATING", FORKED_MS)).toBe(
    "SANDBOX_STATE_RUNNING",
  );
  const domain = (answer.sandbox as Seen & { domain: string }).domain;
  return { ...answer.sandbox, domain, token: answer.data_plane_token } as unknown as Made;
}

it("runs on another host, and its source stays suspended", async () => {
  const { client } = cluster;
  const box = await client.create({ memory_mb: 256 });
  const first = await cluster.hostOf(box);
  await client.shell(box, `echo kept > /root/kept; ${leaveSleeping("1d")}; echo $! > /root/pid`);
  await client.gateway("SuspendSandbox", { id: box.id, wait_durable: true });
  expect(await cluster.get(box)).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED", durable: true });

  await lab.command(["cordon", first]);
  const one = await forkOf(box.id);
  const second = await cluster.hostOf(one);
  expect(second).not.toBe(first);
  const look = 'cat /root/kept; tr "\\0" " " < /proc/$(cat /root/pid)/cmdline';
  expect(await client.shell(one, look)).toBe("kept\nsleep 1d ");
  await lab.command(["uncordon", first]);

  const home = await cluster.hostOf(box);
  // Also before a gateway has declared the host lost.
  await lab.lose(home);
  const other = await forkOf(box.id);
  expect(await cluster.hostOf(other)).not.toBe(home);
  expect(await client.shell(other, look)).toBe("kept\nsleep 1d ");
  expect(await cluster.get(box)).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED" });
  await lab.start(home);
});
