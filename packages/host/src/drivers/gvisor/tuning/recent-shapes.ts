/**
 * Remembers shapes other than the default that are requested repeatedly; a blank unit is kept for each (ready-units.ts).
 * Only decides. Owns the times of requests, in memory; a restart forgets them.
 */

/** Sizes that a sentry gets at its start and that cannot change later. */
export interface Shape {
  readonly cpus: number;
  readonly memoryMb: number;
}

/** One blank unit, of 12 MiB, for each shape. */
const shapesMax = 2;
/** How long a shape is remembered. */
export const shapeMemoryMs = 600_000;
/** Requests until a shape counts: one may be chance. */
const uses = 2;
/** Shapes remembered; the one used longest ago is dropped first. */
const rememberedMax = 32;

export const shapeKey = ({ cpus, memoryMb }: Shape): string => `${cpus}/${memoryMb}`;

export class RecentShapes {
  /** By key, the latest used last, with the times of the latest uses. */
  readonly #used = new Map<string, { shape: Shape; atMs: readonly number[] }>();

  note({ cpus, memoryMb }: Shape, nowMs: number): void {
    const shape = { cpus, memoryMb };
    const key = shapeKey(shape);
    const before = this.#used.get(key)?.atMs ?? [];
    this.#used.delete(key);
    this.#used.set(key, { shape, atMs: [...before, nowMs].slice(-uses) });
    const [oldest] = this.#used.keys();
    if (this.#used.size > rememberedMax && oldest !== undefined) this.#used.delete(oldest);
  }

  /** The latest used first. */
  wanted(nowMs: number): Shape[] {
    const recent = (atMs: number): boolean => nowMs - atMs < shapeMemoryMs;
    return [...this.#used.values()]
      .filter(({ atMs }) => atMs.filter(recent).length === uses)
      .map(({ shape }) => shape)
      .reverse()
      .slice(0, shapesMax);
  }
}
