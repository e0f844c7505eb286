const codes = { bold: 1, red: 31, green: 32, yellow: 33 } as const;
export type Colour = keyof typeof codes;

/** Colours are for people: only on a terminal that has them, and not where NO_COLOR is set (https://no-color.org). */
export function coloured(
  env: NodeJS.ProcessEnv,
  stream: { isTTY?: boolean },
  colour: Colour | undefined,
  text: string,
): string {
  const isWanted = stream.isTTY === true && !env["NO_COLOR"] && env["TERM"] !== "dumb";
  return isWanted && colour !== undefined ? `\x1b[${codes[colour]}m${text}\x1b[0m` : text;
}

/** Of the words that a state, status or result is told in. */
export function colourOfState(word: string): Colour | undefined {
  if (/^(running|ok|visible)$/.test(word)) return "green";
  if (/^(error|failed)/.test(word)) return "red";
  return /ing$|^unknown/.test(word) ? "yellow" : undefined;
}
