/** A database or store that only one installation may use, with its names for the operator. */
import type { OwnedPlace } from "@cloche/base";

/** A database or a store. */
export interface Place {
  owned: OwnedPlace;
  /** Its name for an operator, without secrets: `the database /var/lib/cloche/cloche.db`. */
  name: string;
  /** The setting by which an operator names another one. */
  setting: string;
}
