/** The host's name servers, from /etc/resolv.conf. */
import { readFile } from "node:fs/promises";

/** At most three, as in libc. Keeps an IPv6 scope. The loopback if none is named, as in libc. */
export async function hostResolvers(path = "/etc/resolv.conf"): Promise<readonly string[]> {
  return parseResolvers(await readFile(path, "utf8").catch(() => ""));
}

export function parseResolvers(text: string): readonly string[] {
  const found = text
    .split("\n")
    .flatMap((line) => /^\s*nameserver\s+([0-9a-fA-F.:]+(?:%\S+)?)/.exec(line)?.[1] ?? []);
  return found.length > 0 ? found.slice(0, 3) : ["127.0.0.1"];
}
