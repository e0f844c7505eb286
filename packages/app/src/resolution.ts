import { lookup } from "node:dns/promises";

/** Whether an ordinary client on this machine resolves sandbox domains, and the remedy if not. */
export interface Resolution {
  resolves: boolean;
  /** One paragraph for the operator; empty if the domains resolve. */
  remedy: string;
}

export async function checkResolution(
  baseDomain: string,
  edge: { host: string; port: number },
  resolve: (name: string) => Promise<unknown> = lookup,
): Promise<Resolution> {
  const probe = `sbx-00000000000000000000.${baseDomain}`;
  try {
    await resolve(probe);
    return { resolves: true, remedy: "" };
  } catch {
    const remedy = baseDomain.endsWith("localhost")
      ? `Names under ${baseDomain} do not resolve for ordinary programs here (browsers and curl know them by themselves).\n` +
        "  Remedy: apt-get install libnss-myhostname\n" +
        `  Or per call: curl --resolve <id>.${baseDomain}:${edge.port}:${edge.host}`
      : `Names under ${baseDomain} do not resolve here.\n` +
        `  Remedy: a DNS record *.${baseDomain} that points to this machine (${edge.host}).`;
    return { resolves: false, remedy };
  }
}
