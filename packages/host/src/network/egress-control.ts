/** The network's functions that the host calls for a machine, named by its agent's address. */
import type { Egress } from "@cloche/protocol";
import type { EgressReport } from "./egress-report.ts";
import type { LinkTraffic } from "./traffic.ts";

export interface EgressControl {
  setEgressOf(agentHost: string, egress: Egress | undefined): Promise<void>;
  reportOf(agentHost: string): Promise<EgressReport>;
  /** Traffic of every machine that has a link, by its address. */
  traffic(): Promise<ReadonlyMap<string, LinkTraffic>>;
}
