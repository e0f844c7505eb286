/**
 * Bounds the answers that clients do not take, of a team and of the process: bytes that were written and that the
 * kernel, or the window of an HTTP/2 stream, has not accepted yet. All listeners count here. Beyond a bound, the answer
 * is cut that has stood still for longest, of the team that holds most, so answers that go on are kept.
 */
import type { ServerResponse } from "node:http";
import { constants, type ServerHttp2Stream } from "node:http2";
import { listenerBounds } from "./bounds.ts";

/** `bytes`: as counted last. */
interface Answer {
  readonly response: ServerResponse;
  bytes: number;
  isOver: boolean;
}

interface Team {
  bytes: number;
  /** Those that hold something; first the one that has stood still for longest. */
  readonly holders: Set<Answer>;
}

export class HeldAnswers {
  readonly #bounds: { teamBytes: number; processBytes: number };
  readonly #teams = new Map<string, Team>();
  #bytes = 0;

  constructor(bounds: { teamBytes: number; processBytes: number } = listenerBounds) {
    this.#bounds = bounds;
  }

  /** Bytes that all clients have not taken. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Counts the answer for its team until it is over. Call it before anything is written. */
  watch(response: ServerResponse, teamId: string): void {
    if (response.destroyed) return;
    const answer: Answer = { response, bytes: 0, isOver: false };
    const write = response.write.bind(response) as (...args: unknown[]) => boolean;
    response.write = (...args: unknown[]): boolean => {
      const goesOn = write(...args);
      this.#count(teamId, answer);
      return goesOn;
    };
    const end = response.end.bind(response) as (...args: unknown[]) => ServerResponse;
    response.end = (...args: unknown[]): ServerResponse => {
      end(...args);
      this.#count(teamId, answer);
      return response;
    };
    response.on("drain", () => {
      // It has moved on: others give way before it.
      if (this.#teams.get(teamId)?.holders.delete(answer) === true) this.#team(teamId).holders.add(answer);
      this.#count(teamId, answer);
    });
    response.once("close", () => this.#over(teamId, answer));
  }

  #team(teamId: string): Team {
    const team = this.#teams.get(teamId) ?? { bytes: 0, holders: new Set() };
    this.#teams.set(teamId, team);
    return team;
  }

  #count(teamId: string, answer: Answer): void {
    if (answer.isOver) return;
    this.#set(teamId, answer, answer.response.writableLength);
    const { teamBytes, processBytes } = this.#bounds;
    const ofTeam = (): number => this.#teams.get(teamId)?.bytes ?? 0;
    while (ofTeam() > teamBytes) this.#cutOldest(teamId);
    while (this.#bytes > processBytes) this.#cutOldest(this.#largest());
  }

  #set(teamId: string, answer: Answer, bytes: number): void {
    const more = bytes - answer.bytes;
    if (more === 0) return;
    const team = this.#team(teamId);
    answer.bytes = bytes;
    team.bytes += more;
    this.#bytes += more;
    if (bytes > 0) team.holders.add(answer);
    else team.holders.delete(answer);
    if (team.holders.size === 0) this.#teams.delete(teamId);
  }

  #over(teamId: string, answer: Answer): void {
    this.#set(teamId, answer, 0);
    answer.isOver = true;
  }

  #largest(): string {
    const [first = ["", { bytes: 0 }] as const, ...others] = this.#teams;
    return others.reduce((most, one) => (one[1].bytes > most[1].bytes ? one : most), first)[0];
  }

  #cutOldest(teamId: string): void {
    for (const answer of this.#teams.get(teamId)?.holders ?? []) {
      this.#over(teamId, answer);
      cut(answer.response);
      return;
    }
  }
}

/** An answer of HTTP/2 ends with a code: without one it would look complete. */
function cut(response: ServerResponse): void {
  const { stream } = response as { stream?: ServerHttp2Stream };
  stream?.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
  response.destroy();
}

/** The answers of this process, at all its listeners. */
export const heldAnswers = new HeldAnswers();
