/** The services that need no API key: health and reflection. They cost little, and their streams are counted. */
import { Health } from "@cloche/protocol/grpc-health";
import { ServerReflection } from "@cloche/protocol/grpc-reflection";
import { ApiKeyService, SandboxService } from "@cloche/protocol/public";
import {
  Code,
  ConnectError,
  type ConnectRouterOptions,
  createConnectRouter,
  createContextKey,
} from "@connectrpc/connect";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import { gatewayLimits } from "../limits.ts";
import { grpcHealth, type HealthNeeds } from "./grpc-health.ts";
import { grpcReflection } from "./grpc-reflection.ts";

/** `leave` is called when an accepted call is over. */
export interface CallUnderWay {
  leave: () => void;
}
export const callKey = createContextKey<CallUnderWay>(
  { leave: () => undefined },
  { description: "the call under way" },
);

/** The services that teams call. */
export const teamServices = [SandboxService, ApiKeyService];

// The older name of reflection, which many clients still use; its messages are the same.
const olderReflection = "/grpc.reflection.v1alpha.";
const reflection = "/grpc.reflection.v1.";

export const openPathOf = (path: string): string =>
  path.startsWith(olderReflection) ? reflection + path.slice(olderReflection.length) : path;

export function openServices(
  needs: Pick<HealthNeeds, "ready" | "clock">,
  options: Pick<ConnectRouterOptions, "interceptors" | "acceptCompression" | "shutdownSignal">,
): UniversalHandler[] {
  let open = 0;
  const router = createConnectRouter({
    ...options,
    readMaxBytes: gatewayLimits.openMessageBytes,
    requestGate({ method, values }) {
      if (method.methodKind === "unary") return;
      if (open >= gatewayLimits.openStreams) {
        const message = `${open} streams of health and reflection are open; at most ${gatewayLimits.openStreams} are allowed`;
        throw new ConnectError(message, Code.ResourceExhausted);
      }
      open++;
      values.get(callKey).leave = () => void open--;
    },
  });
  const services = [...teamServices, Health, ServerReflection];
  const names = new Set(services.map(({ typeName }) => typeName));
  router.service(Health, grpcHealth({ ...needs, services: names }));
  router.service(ServerReflection, grpcReflection(services));
  return router.handlers;
}
