// What one installation alone may use, and how an operator knows it.
import type { OwnedPlace } from "@cloche/base";

/** A database or a store. */
export interface Place {
  owned: OwnedPlace;
  /** What an operator calls it, without secrets: `the database /var/lib/cloche/cloche.db`. */
  name: string;
  /** The setting that names another one. */
  setting: string;
}
