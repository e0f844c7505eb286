/** W3C trace context: the caller gives the ids; the service passes them to its parts and into its logs unchanged. */
export const traceparentHeader = "traceparent";

/** The header as sent if it is valid (https://www.w3.org/TR/trace-context/); else empty, and it is not passed on. */
export function traceparentOf(header: string | readonly string[] | null | undefined): string {
  if (typeof header !== "string") return "";
  const [, version, traceId, parentId, rest] =
    /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.{0,200})?$/.exec(header) ?? [];
  if (version === undefined || version === "ff" || (version === "00" && rest !== undefined)) return "";
  return /^0+$/.test(traceId ?? "") || /^0+$/.test(parentId ?? "") ? "" : header;
}
