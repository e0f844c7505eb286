/**
 * The egress of each slot: its policy, the nft elements that enforce it, the addresses that its allowed names resolved to, and
 * its denials. One change of a slot at a time.
 *
 * Called by network.ts (slots come and go, policies change) and by the DNS forwarder (questions and answers).
 * The elements (in the kernel) and the policy (in the slot's files) survive a crash; `find` reads them.
 * The counts of refused names are lost.
 */
import { randomInt } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { RateLimit, SerialQueue } from "@cloche/base";
import { limits, matchesDomain } from "@cloche/protocol";
import type { Element } from "../sys/native.ts";
import { isSpecial, type Subnet, slotAddresses } from "./address.ts";
import {
  type AddressRecord,
  addressesIn,
  answerOf,
  isTruncated,
  rcodeOf,
  typeA,
  typeAaaa,
  typesSvcb,
} from "./dns-answer.ts";
import type { NamePolicy } from "./dns-forwarder.ts";
import { type DnsQuestion, rcodeRefused, rcodeServerFailure, refusal } from "./dns-message.ts";
import {
  checkEgress,
  type EgressPolicy,
  egressCommands,
  elementsOf,
  noElements,
  openElements,
  removalCommands,
  type SlotElements,
} from "./egress.ts";
import type { EgressReport } from "./egress-report.ts";
import { slotInterface } from "./names.ts";
import { RefusedNames } from "./refused-names.ts";
import {
  learn,
  learned,
  nothingResolved,
  type Resolved,
  resolvedMax,
  resolvedChanges,
  retain,
} from "./resolved.ts";
import { changeElements, routerNft, routerNftJson } from "./router.ts";
import { routerTable, specialRanges } from "./rules.ts";
import { type Denial, readDenials, readElements, readRefusals, readResolved } from "./nft-listing.ts";
import { type SlotPlace, saveEgress, savedEgress } from "./slot.ts";

const open: EgressPolicy = { mode: "open" };
const generations = 0x7fff_ffff;
/** With a longer TTL a program would use an address after it is closed. */
const answerTtlMaxSeconds = 3_600;
/** Addresses of one answer that are passed on. */
const answerAddressesMax = 64;
/** Addresses that a sandbox may learn, after as many as it may have: more would push each other out before they are used. */
const learnedPerSecond = 20;

interface SlotState {
  policy: EgressPolicy;
  elements: SlotElements;
  resolved: Resolved;
  refused: RefusedNames;
}

export class SlotEgress implements NamePolicy {
  readonly #place: SlotPlace;
  readonly #subnet: Subnet;
  readonly #slots = new Map<number, SlotState>();
  readonly #queue = new SerialQueue();
  readonly #learning = new RateLimit({
    perSecond: learnedPerSecond,
    burstSeconds: resolvedMax / learnedPerSecond,
    monotonicMs: () => performance.now(),
  });

  constructor(place: SlotPlace, subnet: Subnet) {
    this.#place = place;
    this.#subnet = subnet;
  }

  /** Reads the state that an earlier service left. Answers for each slot whether its elements are complete. */
  async find(): Promise<Map<number, { complete: boolean }>> {
    const json = await routerNftJson(this.#place.tag, "list", "table", ...routerTable.split(" "));
    const resolved = readResolved(json, Date.now());
    const found = new Map<number, { complete: boolean }>();
    for (const [slot, elements] of readElements(json)) {
      const policy = (await savedEgress(this.#place, slot)) ?? open;
      const own = { policy, elements, resolved: resolved.get(slot) ?? nothingResolved };
      this.#slots.set(slot, { ...own, refused: new RefusedNames() });
      found.set(slot, { complete: elements.hasEgress });
    }
    return found;
  }

  /** Adds a new slot, open to the public internet. */
  add(slot: number): Promise<void> {
    return this.#inTurn(slot, async () => {
      await changeElements(this.#place, this.#ofOpen(slot).map(added));
      const elements = elementsOf(open);
      this.#slots.set(slot, {
        policy: open,
        elements,
        resolved: nothingResolved,
        refused: new RefusedNames(),
      });
    });
  }

  /** Changes the policy in one transaction, after taking away the addresses of names that it does not allow. Names that stay allowed keep their addresses; all connections are judged anew. */
  set(slot: number, policy: EgressPolicy): Promise<void> {
    checkEgress(policy);
    return this.#inTurn(slot, async () => {
      const state = this.#slots.get(slot);
      if (!state) throw new Error(`slot ${slot} is not there`);
      if (isDeepStrictEqual(state.policy, policy)) return;
      const nowMs = Date.now();
      const generation = randomInt(1, generations);
      const domains = policy.mode === "list" ? policy.domains : [];
      const resolved = retain(state.resolved, domains, nowMs);
      await changeElements(this.#place, resolvedChanges(slot, state.resolved, resolved, nowMs));
      state.resolved = resolved;
      await routerNft(this.#place, egressCommands(slot, policy, state.elements, generation));
      Object.assign(state, { policy, elements: elementsOf(policy, generation) });
      await saveEgress(this.#place, slot, policy);
    });
  }

  /** Removes a slot's elements, after its link is gone. `denied`: the slot was denied something. Repeatable. */
  remove(slot: number, { denied }: { denied: boolean }): Promise<void> {
    return this.#inTurn(slot, async () => {
      const state = this.#slots.get(slot);
      if (state?.policy.mode === "open" && state.resolved.size === 0 && !denied) {
        const elements = this.#ofOpen(slot);
        await changeElements(this.#place, [...elements.map(added), ...elements.map(deleted)]);
        this.#slots.delete(slot);
        return;
      }
      const name = slotInterface(slot);
      const { address } = slotAddresses(this.#subnet, slot);
      const known = state?.resolved ?? nothingResolved;
      await changeElements(this.#place, resolvedChanges(slot, known, nothingResolved, Date.now()));
      // Add each element before deleting it, because nft refuses to delete a missing one.
      const gone = [`sources { ${name} . ${address} }`, ...(denied ? await this.#traces(slot) : [])];
      await routerNft(this.#place, [
        ...gone.flatMap((element) => [
          `add element ${routerTable} ${element}`,
          `delete element ${routerTable} ${element}`,
        ]),
        ...removalCommands(slot, state?.elements ?? noElements),
      ]);
      this.#slots.delete(slot);
    });
  }

  /** All elements of an open slot without denials. */
  #ofOpen(slot: number): Element[] {
    const { address } = slotAddresses(this.#subnet, slot);
    return [{ set: "sources", interface: slotInterface(slot), address }, ...openElements(slot)];
  }

  /** The elements that denials of the slot left in the sets. */
  async #traces(slot: number): Promise<string[]> {
    const name = slotInterface(slot);
    const refusals = readRefusals(await this.#list("refusals"), Date.now()).get(slot) ?? [];
    return [
      `denied { ${name} }`,
      `noting { ${name} limit rate 1/second }`,
      ...refusals.map((one) => `refusals { ${name} . ${one.address} . ${one.protocol} . ${one.port} }`),
    ];
  }

  async denials(): Promise<ReadonlyMap<number, Denial>> {
    return readDenials(await this.#list("denied"));
  }

  async report(slot: number): Promise<EgressReport> {
    const [denied, refusals] = await Promise.all([this.#list("denied"), this.#list("refusals")]);
    const refused = this.#slots.get(slot)?.refused;
    const packets = (readRefusals(refusals, Date.now()).get(slot) ?? []).map((one) => ({
      destination: one.address,
      protocol: one.protocol,
      port: one.port,
      count: one.packets,
      lastAtMs: one.lastAtMs,
    }));
    const recent = [...packets, ...(refused?.recent ?? [])].sort((a, b) => b.lastAtMs - a.lastAtMs);
    return {
      deniedPackets: readDenials(denied).get(slot)?.packets ?? 0,
      deniedNames: refused?.count ?? 0,
      recent: recent.slice(0, limits.egressDenials),
    };
  }

  before(slot: number, question: DnsQuestion, query: Buffer): Buffer | undefined {
    const state = this.#slots.get(slot);
    if (state?.policy.mode === "open") return undefined;
    const isAllowed =
      state?.policy.mode === "list" && state.policy.domains.some((one) => matchesDomain(one, question.name));
    if (!isAllowed) {
      state?.refused.note(question.name, Date.now());
      return refusal(query, rcodeRefused);
    }
    // Sandboxes have no IPv6, and service bindings contain addresses that are not checked.
    const isEmpty = question.type === typeAaaa || typesSvcb.includes(question.type);
    return isEmpty ? answerOf(query, question, []) : undefined;
  }

  /**
   * Passes on only the public addresses of an allowed name, which may then be reached. Private addresses (rebinding) and records of
   * other names are left out.
   */
  async after(slot: number, question: DnsQuestion, query: Buffer, answer: Buffer): Promise<Buffer> {
    const state = this.#slots.get(slot);
    if (state?.policy.mode === "open" || question.type !== typeA) return answer;
    if (isTruncated(answer)) return answerOf(query, question, [], { truncated: true });
    const addresses = addressesIn(answer, question);
    if (!state || !addresses) return refusal(query, rcodeServerFailure);
    const usable = addresses.filter(
      ({ address }) => !isSpecial(address, [...specialRanges, this.#subnet.cidr]),
    );
    if (usable.length < addresses.length) state.refused.note(question.name, Date.now());
    if (usable.length === 0) return answerOf(query, question, [], { rcode: rcodeOf(answer) });
    const passed = usable.slice(0, answerAddressesMax);
    const admitted = await this.#inTurn(slot, () => this.#admit(slot, question.name, passed));
    if (admitted === undefined) return refusal(query, rcodeServerFailure);
    return admitted.length > 0 ? answerOf(query, question, admitted) : refusal(query, rcodeRefused);
  }

  /** Empty: the name is no longer in the list. Undefined: the sandbox learns addresses faster than it can have them. */
  async #admit(
    slot: number,
    name: string,
    answer: readonly AddressRecord[],
  ): Promise<AddressRecord[] | undefined> {
    const state = this.#slots.get(slot);
    if (state?.policy.mode !== "list") return [];
    const { domains } = state.policy;
    if (!domains.some((one) => matchesDomain(one, name))) return [];
    const nowMs = Date.now();
    const resolved = learn(state.resolved, domains, name, answer, nowMs);
    const cost = learned(state.resolved, resolved);
    if (cost > 0 && this.#learning.take(String(slot), cost) > 0) return undefined;
    await changeElements(this.#place, resolvedChanges(slot, state.resolved, resolved, nowMs));
    state.resolved = resolved;
    return answer.flatMap((record) => {
      const known = resolved.get(record.address);
      if (!known) return [];
      const leftSeconds = Math.floor((known.expiresAtMs - nowMs) / 1_000);
      return { ...record, ttlSeconds: Math.min(record.ttlSeconds, leftSeconds, answerTtlMaxSeconds) };
    });
  }

  #list(set: string): Promise<unknown> {
    return routerNftJson(this.#place.tag, "list", "set", ...routerTable.split(" "), set);
  }

  #inTurn<T>(slot: number, body: () => Promise<T>): Promise<T> {
    return this.#queue.run(String(slot), body);
  }
}

const added = (element: Element) => ({ ...element, verb: "add" as const });
/** Delete only after an add in the same transaction, because a missing element cannot be deleted. */
const deleted = (element: Element) => ({ ...element, verb: "delete" as const });
