import { limits } from "./limits.ts";

/** Identifiers. Randomness is passed in: `randomBytes(n)` must be cryptographically strong. */
export type RandomBytes = (length: number) => Uint8Array;

const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";

/** 20 characters of a-z0-9 (103 bits), without modulo bias. */
function suffix(randomBytes: RandomBytes): string {
  let text = "";
  while (text.length < 20) {
    for (const byte of randomBytes(32)) {
      if (byte < 252 && text.length < 20) text += alphabet.charAt(byte % 36);
    }
  }
  return text;
}

export const newSandboxId = (randomBytes: RandomBytes): string => `sbx-${suffix(randomBytes)}`;
export const newCheckpointId = (randomBytes: RandomBytes): string => `ckpt-${suffix(randomBytes)}`;
export const newProcessId = (randomBytes: RandomBytes): string => `proc-${suffix(randomBytes)}`;
export const newApiKeyId = (randomBytes: RandomBytes): string => `key-${suffix(randomBytes)}`;
export const newTeamId = (randomBytes: RandomBytes): string => `team-${suffix(randomBytes)}`;
export const newInstallationId = (randomBytes: RandomBytes): string => `ins-${suffix(randomBytes)}`;
/** The id of one run of a service. */
export const newSessionId = (randomBytes: RandomBytes): string => `run-${suffix(randomBytes)}`;
export const newRequestId = (randomBytes: RandomBytes): string => `req-${suffix(randomBytes)}`;
/** `own`: the caller's x-request-id header, used if its form is valid; else a new id. */
export const requestIdFrom = (own: unknown, randomBytes: RandomBytes): string =>
  typeof own === "string" && own.length <= limits.requestIdLength && /^[\x21-\x7e]+$/.test(own)
    ? own
    : newRequestId(randomBytes);

export const isSandboxId = (text: string): boolean => /^sbx-[a-z0-9]{20}$/.test(text);
export const isCheckpointId = (text: string): boolean => /^ckpt-[a-z0-9]{20}$/.test(text);
export const isInstallationId = (text: string): boolean => /^ins-[a-z0-9]{20}$/.test(text);
export const isSessionId = (text: string): boolean => /^run-[a-z0-9]{20}$/.test(text);
export const isServiceName = (text: string): boolean => /^[a-z0-9][a-z0-9_-]{0,62}$/.test(text);

/**
 * Characters that no display name may have: control and format characters, line and paragraph separators, private use,
 * noncharacters. Listed one by one, so that the OpenAPI documents can say the same in any language and a newer Unicode
 * changes nothing.
 */
const unprintable =
  "\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u180e\\u200b-\\u200f" +
  "\\u2028-\\u202e\\u2060-\\u206f\\ue000-\\uf8ff\\ufdd0-\\ufdef\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff" +
  // Not escaped: languages write escapes above U+FFFF differently.
  "\u{110bd}\u{110cd}\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e007f}\u{f0000}-\u{10ffff}";

/** Pattern of a display name, without the length; also matches the empty text, which stands for a generated name. */
export const displayNamePattern = `^[^${unprintable}]*$`;
const displayNameForm = new RegExp(displayNamePattern, "u");

/** A sandbox or checkpoint display name: 1 to 64 printable characters (spec/contract.md, Gateway). */
export function isDisplayName(text: string, maxLength = 64): boolean {
  const length = [...text].length;
  return length >= 1 && length <= maxLength && text.isWellFormed() && displayNameForm.test(text);
}

const adjectives =
  "amber brave brisk calm clear cosy crisp daring eager early fair fleet fond gentle glad golden grand happy hardy honest keen kind lively lucid lucky mellow merry mild neat noble plain polite proud quick quiet rapid ready royal rustic sharp shiny silent silver simple sleek smart snug solid spry steady still sunny swift tidy true vivid warm wild wise witty young zesty".split(
    " ",
  );
const animals =
  "ant badger bat bear beaver bee bison boar camel carp cat cod crab crane crow deer dove duck eagle eel elk emu falcon ferret finch fox frog gecko goat goose gull hare hawk heron horse ibis ibex jay koala lark lemur lion llama lynx mole moose mouse newt orca otter owl panda perch pike puffin quail raven robin seal shrew skunk sloth snail stoat stork swan tapir tern tiger toad trout vole wasp whale wolf wombat wren yak zebra".split(
    " ",
  );

/** `adjective-animal-NNNN` (spec/contract.md, Gateway). */
export function generateName(randomBytes: RandomBytes): string {
  const bytes = randomBytes(8);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const adjective = adjectives[view.getUint16(0) % adjectives.length];
  const animal = animals[view.getUint16(2) % animals.length];
  return `${adjective}-${animal}-${String(view.getUint32(4) % 10_000).padStart(4, "0")}`;
}
