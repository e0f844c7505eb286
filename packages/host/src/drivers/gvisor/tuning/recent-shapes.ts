// Shapes beside the default one that are asked for again and again: for each of them a blank is kept (ready-units.ts).
// Decides only; owns nothing but what it was told, which a restart forgets.

/** What the sentry is told when it starts, and cannot be told later. */
export interface Shape {
  readonly cpus: number;
  readonly memoryMb: number;
}

/** Blanks of 12 MiB each, one for a shape. */
const SHAPES_MAX = 2;
/** How long a shape is remembered. */
export const SHAPE_MEMORY_MS = 600_000;
/** Once may be by chance. */
const USES = 2;
/** Shapes that are looked for at once; what was used longest ago goes first. */
const REMEMBERED_MAX = 32;

export const shapeKey = ({ cpus, memoryMb }: Shape): string => `${cpus}/${memoryMb}`;

export class RecentShapes {
  /** By key, the latest used last, with the times of its latest uses. */
  readonly #used = new Map<string, { shape: Shape; atMs: readonly number[] }>();

  note({ cpus, memoryMb }: Shape, nowMs: number): void {
    const shape = { cpus, memoryMb };
    const key = shapeKey(shape);
    const before = this.#used.get(key)?.atMs ?? [];
    this.#used.delete(key);
    this.#used.set(key, { shape, atMs: [...before, nowMs].slice(-USES) });
    const [oldest] = this.#used.keys();
    if (this.#used.size > REMEMBERED_MAX && oldest !== undefined) this.#used.delete(oldest);
  }

  /** The latest used first. */
  wanted(nowMs: number): Shape[] {
    const recent = (atMs: number): boolean => nowMs - atMs < SHAPE_MEMORY_MS;
    return [...this.#used.values()]
      .filter(({ atMs }) => atMs.filter(recent).length === USES)
      .map(({ shape }) => shape)
      .reverse()
      .slice(0, SHAPES_MAX);
  }
}
