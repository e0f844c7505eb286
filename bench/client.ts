/** The SDK's client of a benchmark's own service. */
import { readFile } from "node:fs/promises";
import { connect } from "@cloche/sdk/node";
import type { TestService } from "../tests/fixtures/service.ts";

export async function clientOf({ status }: TestService): Promise<ReturnType<typeof connect>> {
  return connect({
    gatewayUrl: status.gateway_url,
    apiKey: status.api_key,
    edgeUrl: status.edge_url,
    baseDomain: status.base_domain,
    caCert: await readFile(status.ca_cert, "utf8"),
    // What clients elsewhere use: TLS.
    useDomains: true,
  });
}
