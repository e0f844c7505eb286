// Memory, disk and identity of virtual machines through fork, suspend and resume.
import { beforeAll, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";
import { type Count, countIn, fork, goesOn, resume, startCounter, suspend } from "./vm-client.ts";

const client = sharedClient();
let source: TestSandbox;
let begun: Count;
beforeAll(async () => {
  source = await client.create({ name: "source" });
  begun = await startCounter(client, source);
});

test("a fork has the memory and the disk of its source, and goes its own way; a fork of it too", async () => {
  await client.shell(source, "echo shared > /root/file");
  const child = await fork(client, source);
  const inChild = await goesOn(client, child, begun);
  expect(await client.shell(child, "cat /root/file")).toBe("shared\n");
  await client.shell(child, "echo mine > /root/file");
  const grandchild = await fork(client, child);
  await client.session.discard(child.id);
  await goesOn(client, grandchild, inChild);
  expect(await client.shell(grandchild, "cat /root/file")).toBe("mine\n");
  expect(await client.shell(source, "cat /root/file")).toBe("shared\n");
  await goesOn(client, source, begun);

  const identity = "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1";
  const of = async (each: TestSandbox): Promise<string[]> =>
    (await client.shell(each, identity)).trim().split("\n");
  const [first, second] = await Promise.all([of(source), of(grandchild)]);
  for (const [index, line] of first.entries()) expect(line, `line ${index}`).not.toBe(second[index]);
});

test("stands still while suspended, goes on after, and knows what time it is", async () => {
  const before = await countIn(client, source);
  await client.call(source, "PUT", "/v1/store/kept", { json: { value: [1] } });
  await suspend(client, source);
  await resume(client, source);
  await goesOn(client, source, before);
  const kept = await client.call(source, "GET", "/v1/store/kept");
  expect(JSON.parse(kept.body.toString())).toMatchObject({ value: [1] });
  const off = await eventually(
    async () => Math.abs(Number(await client.shell(source, "date +%s")) - Date.now() / 1_000),
    (seconds) => seconds < 10,
    60_000,
  );
  expect(off).toBeLessThan(10);
});
