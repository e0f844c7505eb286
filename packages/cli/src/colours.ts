const codes = { bold: 1, red: 31, green: 32, yellow: 33 } as const;
export type Colour = keyof typeof codes;

/** Whether the stream is a terminal with colours, and NO_COLOR is not set (https://no-color.org). */
export const hasColours = (env: NodeJS.ProcessEnv, stream: { isTTY?: boolean }): boolean =>
  stream.isTTY === true && !env["NO_COLOR"] && env["TERM"] !== "dumb";

export function coloured(
  env: NodeJS.ProcessEnv,
  stream: { isTTY?: boolean },
  colour: Colour | undefined,
  text: string,
): string {
  return hasColours(env, stream) && colour !== undefined ? `\x1b[${codes[colour]}m${text}\x1b[0m` : text;
}

/** The colour of a word for a state, status or result. */
export function colourOfState(state: string): Colour | undefined {
  if (/^(running|ok|visible)$/.test(state)) return "green";
  if (/^(error|failed)/.test(state)) return "red";
  return /ing$|^unknown/.test(state) ? "yellow" : undefined;
}
