/** Parses `host:port`, with an IPv6 address in brackets. Throws for anything else. */
export function parseAddress(address: string): { host: string; port: number } {
  const [, bracketed, plain, port] = /^(?:\[([0-9a-f:.]+)\]|([^:[\]]+)):(\d{1,5})$/i.exec(address) ?? [];
  const host = bracketed ?? plain;
  if (host === undefined || Number(port) < 1 || Number(port) > 65_535)
    throw new Error(`${JSON.stringify(address)} is no host:port`);
  return { host, port: Number(port) };
}
