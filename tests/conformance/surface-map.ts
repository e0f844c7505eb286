// Every method of the gateway and every route of the data plane, and which of them a case shows to succeed.
import { ApiKeyService, SandboxService } from "@cloche/protocol/public";
import { dataPlaneRoutes } from "@cloche/protocol";
import type { CaseFile, Step } from "./case-file.ts";
import { openApiPath } from "./contract-check.ts";
import { requestLine } from "./step.ts";

export interface GatewayMethod {
  name: string;
  /** /cloche.public.v1.SandboxService/CreateSandbox */
  path: string;
}

export const gatewayMethods: readonly GatewayMethod[] = [SandboxService, ApiKeyService].flatMap((service) =>
  service.methods.map((method) => ({ name: method.name, path: `/${service.typeName}/${method.name}` })),
);

/** `GET /v1/services/{name}` of each data plane route, as the OpenAPI document writes it. */
export const dataPlaneOperations: readonly string[] = dataPlaneRoutes.map(
  ({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, "{$1}").replace("*", "{key}")}`,
);

/** What the cases show to succeed: gateway paths and data plane operations. Known failures show nothing. */
export function successes(files: readonly CaseFile[]): Set<string> {
  const shown = new Set<string>();
  for (const file of files) {
    for (const one of file.cases) {
      if (one.known_failure !== undefined) continue;
      for (const step of one.steps) if (succeeds(step)) shown.add(subject(file, step));
    }
  }
  return shown;
}

const switchingProtocols = 101;

const succeeds = ({ expect }: Step): boolean =>
  typeof expect.status === "number" &&
  ((expect.status >= 200 && expect.status < 300) || expect.status === switchingProtocols);

function subject(file: CaseFile, step: Step): string {
  const surface = step.surface ?? (step.call.includes(" ") ? "dataplane" : file.surface);
  const { method, path } = requestLine(step, surface);
  return surface === "gateway" ? path : `${method} ${openApiPath(path) ?? path}`;
}
