import { type Owner, silentLog } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { expect, it } from "vitest";
import { checkSharedStore } from "./shared-store.ts";

const installation = { id: "ins-aaaaaaaaaaaaaaaaaaaa", storage: "s3://right/prefix" };
const away = new ClocheError("unavailable", "no answer");
const ownerOf = (id: string): Owner => ({
  installation: id,
  home: "of a cluster",
  host: "its gateways",
  machine: "cluster",
  session: "run-aaaaaaaaaaaaaaaaaaaa",
  claimedAtMs: 1,
  seenAtMs: 1,
});

/** A store in which each look finds the next of these, and the last for good. */
function world(...found: (Owner | undefined | Error)[]) {
  const guards: (string | undefined)[] = [];
  let sleeps = 0;
  const looks = found[Symbol.iterator]();
  let seen: Owner | undefined | Error;
  const needs = {
    blobs: { guard: (why: string | undefined) => void guards.push(why) },
    place: {
      name: "the checkpoint storage s3://wrong/prefix",
      setting: "CLOCHE_BLOB_URL",
      owned: {
        async owner() {
          const next = looks.next();
          if (!next.done) seen = next.value;
          if (seen instanceof Error) throw seen;
          return seen;
        },
        replaceOwner: async () => false,
        ownerSeen: async () => false,
        removeOwner: async () => undefined,
      },
    },
    installation,
    clock: { sleep: async () => void (sleeps += 1) },
    log: silentLog,
    signal: new AbortController().signal,
  };
  return { needs, guards, sleeps: () => sleeps };
}

it("opens the storage that is the cluster's", async () => {
  const { needs, guards } = world(ownerOf(installation.id));
  await checkSharedStore(needs);
  expect(guards).toEqual([undefined]);
});

it.each([
  [
    "another's",
    ownerOf("ins-bbbbbbbbbbbbbbbbbbbb"),
    "belongs to another installation: installation ins-bbbb",
  ],
  ["nobody's", undefined, "belongs to no cluster"],
])("refuses one that is %s, and says which is right", async (_, owner, words) => {
  const { needs, guards } = world(owner);
  const refused = checkSharedStore(needs);
  await expect(refused).rejects.toMatchObject({ code: "failed_precondition" });
  const { message } = (await refused.catch((error: unknown) => error)) as Error;
  expect(message).toContain(`the checkpoint storage s3://wrong/prefix ${words}`);
  expect(message).toContain(`Set CLOCHE_BLOB_URL to the storage of this host's cluster (${installation.id})`);
  expect(message).toContain("its gateways use s3://right/prefix");
  expect(guards).toEqual([]);
});

it("writes nothing to one that is away until it is known whose it is", async () => {
  const { needs, guards, sleeps } = world(away, away, ownerOf(installation.id));
  await checkSharedStore(needs);
  expect(guards).toEqual([]);
  await expect.poll(() => guards).toEqual([undefined]);
  expect(sleeps()).toBe(2);
});

it("shuts one for good that turns out to be another's", async () => {
  const { needs, guards, sleeps } = world(away, ownerOf("ins-bbbbbbbbbbbbbbbbbbbb"));
  await checkSharedStore(needs);
  await expect.poll(() => guards).toEqual([expect.stringContaining("belongs to another installation")]);
  expect(sleeps()).toBe(1);
});

it("uses what a gateway of an earlier release does not tell of, as that did", async () => {
  const { needs, guards } = world(undefined);
  await checkSharedStore({ ...needs, installation: undefined });
  expect(guards).toEqual([undefined]);
});
