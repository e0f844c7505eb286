import type { CreateSandboxRequest } from "@cloche/sdk";
import { badField, notOffered } from "../e2b-error.ts";
import type { Fields } from "../http.ts";
import { flag } from "./api-call.ts";

type Egress = NonNullable<CreateSandboxRequest["egress"]>;

const everything = "0.0.0.0/0";
/** Fields that are not offered: they need inspection or redirection of traffic. */
const notThere = ["egressProxy", "maskRequestHost", "httpsPorts"] as const;

/** E2B's rules as an egress policy (docs/network.md): everything, nothing, or the list `allowOut` if all else is denied. */
export function egressOf(network: Fields, allowInternet: boolean | undefined): Egress {
  for (const name of notThere) if (isSet(network[name])) throw notOffered(`network.${name}`);
  if (isSet(network.rules)) throw notOffered("network.rules, which change requests on their way");
  const denied = list(network, "denyOut");
  const allowed = list(network, "allowOut");
  const deniesAll = allowInternet === false || denied.includes(everything);
  const others = denied.filter((one) => one !== everything);
  // With a rule that denies all, further denied addresses need no rules: allowed ones come first, and the rest is denied.
  if (!deniesAll && others.length > 0)
    throw notOffered(
      `network.denyOut of single addresses; deny ${everything} and list in allowOut what may be reached`,
    );
  if (!deniesAll || allowed.includes(everything)) return { mode: "open" };
  if (allowed.length === 0) return { mode: "none" };
  const isAddress = (one: string): boolean => /^[\d./]+$/.test(one);
  return {
    mode: "allow",
    cidrs: allowed.filter(isAddress),
    domains: allowed.filter((one) => !isAddress(one)),
  };
}

/** Whether ports are public, which is E2B's default. */
export const isPublicTraffic = (network: Fields): boolean => flag(network, "allowPublicTraffic") ?? true;

export function networkField(body: Fields): Fields {
  const { network } = body;
  if (network === undefined || network === null) return {};
  if (typeof network !== "object" || Array.isArray(network)) throw badField("network", network, "an object");
  return network as Fields;
}

function list(network: Fields, name: string): string[] {
  const value = network[name] ?? [];
  if (!Array.isArray(value) || value.some((one) => typeof one !== "string"))
    throw badField(`network.${name}`, value, "an array of addresses, CIDRs or domains");
  return value as string[];
}

const isSet = (value: unknown): boolean =>
  value !== undefined &&
  value !== null &&
  value !== "" &&
  !(typeof value === "object" && Object.keys(value).length === 0);
