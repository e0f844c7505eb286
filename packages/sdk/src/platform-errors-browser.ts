/** A browser tells a page nothing of why a request failed. */
export const remedyOf = (): ["unreachable", string] => [
  "unreachable",
  "open its address in a tab, where the browser says why",
];
