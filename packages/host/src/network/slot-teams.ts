/**
 * Whose sandbox has each slot: the router counts the connections of a team together, and the DNS forwarder its questions.
 * A team is a mark, 32 bits of its id's hash: two teams with equal marks share their bounds.
 *
 * Called by network.ts. The marks are elements in the kernel and survive a crash; `find` reads them.
 */
import { createHash } from "node:crypto";
import { SerialQueue } from "@cloche/base";
import type { ElementChange } from "../sys/native.ts";
import { slotInterface } from "./names.ts";
import { changeElements, routerNftJson } from "./router.ts";
import { routerTable } from "./rules.ts";
import { readTeams } from "./nft-listing.ts";
import type { SlotPlace } from "./slot.ts";

export class SlotTeams {
  readonly #place: SlotPlace;
  readonly #marks = new Map<number, number>();
  readonly #queue = new SerialQueue();

  constructor(place: SlotPlace) {
    this.#place = place;
  }

  /** Reads the marks that an earlier service left; answers their slots. */
  async find(): Promise<number[]> {
    const json = await routerNftJson(this.#place.tag, "list", "map", ...routerTable.split(" "), "teams");
    for (const [slot, mark] of readTeams(json)) this.#marks.set(slot, mark);
    return [...this.#marks.keys()];
  }

  /** Undefined: no machine of a team has the slot. */
  markOf(slot: number): number | undefined {
    return this.#marks.get(slot);
  }

  /** Repeatable. */
  set(slot: number, teamId: string): Promise<void> {
    return this.#change(slot, markOfTeam(teamId));
  }

  remove(slot: number): Promise<void> {
    return this.#change(slot, undefined);
  }

  #change(slot: number, mark: number | undefined): Promise<void> {
    return this.#queue.run(String(slot), async () => {
      const known = this.#marks.get(slot);
      if (known === mark) return;
      const element = (verb: "add" | "delete", value: number): ElementChange => ({
        verb,
        set: "teams",
        interface: slotInterface(slot),
        mark: value,
      });
      await changeElements(this.#place, [
        ...(known === undefined ? [] : [element("delete", known)]),
        ...(mark === undefined ? [] : [element("add", mark)]),
      ]);
      if (mark === undefined) this.#marks.delete(slot);
      else this.#marks.set(slot, mark);
    });
  }
}

/** 0 means no mark. */
const markOfTeam = (teamId: string): number =>
  createHash("sha256").update(teamId).digest().readUInt32LE(0) || 1;
