/** The position where a page ended, in a list that is sorted by time of creation, newest first. */
import { ClocheError } from "./errors.ts";

export interface ListPosition {
  /** RFC 3339 UTC with milliseconds: such texts sort like their times. */
  created_at: string;
  id: string;
}

/** The position as opaque text, for a field such as `next_page_token` or `cursor`. */
export const listPositionText = ({ created_at, id }: ListPosition): string => `${created_at}~${id}`;

/** Parses such a text. Throws `invalid_argument` naming `field` if it is not valid. */
export function parseListPosition(field: string, text: string): ListPosition {
  const [, created_at, id] =
    /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)~([a-z]{1,8}-[a-z0-9]{1,40})$/.exec(text) ?? [];
  if (created_at !== undefined && id !== undefined && !Number.isNaN(Date.parse(created_at)))
    return { created_at, id };
  throw new ClocheError(
    "invalid_argument",
    `${field} ${JSON.stringify(text.slice(0, 100))} is not one; pass the one that the page before ended with`,
  );
}

/** Whether `one` comes after `position`. */
export const isBehind = (one: ListPosition, position: ListPosition): boolean =>
  one.created_at < position.created_at || (one.created_at === position.created_at && one.id < position.id);
