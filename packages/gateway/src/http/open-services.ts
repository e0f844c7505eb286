/** The service that needs no API key: gRPC health. It costs little, and its streams are limited. */
import type { Hold } from "@cloche/base";
import { Health } from "@cloche/protocol/grpc-health";
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

export interface CallUnderWay {
  /** Of the client. */
  readonly address: string;
  /** Cuts the call off. */
  readonly end: () => void;
  /** Called when the caller's team is known. */
  readonly isOf: (teamId: string) => void;
  /** Called when an accepted call is over. */
  leave: () => void;
  /** Called when the answer is made. */
  endTurn: () => void;
  /** What is held of the call's body. */
  hold: Hold | undefined;
}
export const callKey = createContextKey<CallUnderWay>(
  {
    address: "",
    end: () => undefined,
    isOf: () => undefined,
    leave: () => undefined,
    endTurn: () => undefined,
    hold: undefined,
  },
  { description: "the call under way" },
);

/** The services that teams call. */
export const teamServices = [SandboxService, ApiKeyService];

/** Streams without a key, oldest first. A new one beyond the limit ends the oldest, so that nobody holds all for good. */
class OpenStreams {
  readonly #open = new Set<CallUnderWay>();

  enter(call: CallUnderWay): void {
    const { openStreams, openStreamsOfAddress } = gatewayLimits;
    const own = [...this.#open].filter(({ address }) => address === call.address).length;
    if (own >= openStreamsOfAddress) {
      const message = `${own} streams of health are open from this address, which is the most`;
      throw new ConnectError(message, Code.ResourceExhausted);
    }
    const [oldest] = this.#open;
    if (oldest !== undefined && this.#open.size >= openStreams) {
      this.#open.delete(oldest);
      oldest.end();
    }
    this.#open.add(call);
    call.leave = () => void this.#open.delete(call);
  }
}

export function openServices(
  needs: Pick<HealthNeeds, "ready" | "clock">,
  options: Pick<ConnectRouterOptions, "interceptors" | "acceptCompression" | "shutdownSignal">,
): UniversalHandler[] {
  const open = new OpenStreams();
  const router = createConnectRouter({
    ...options,
    readMaxBytes: gatewayLimits.openMessageBytes,
    requestGate({ method, values }) {
      if (method.methodKind === "unary") return;
      open.enter(values.get(callKey));
    },
  });
  const services = new Set([...teamServices, Health].map(({ typeName }) => typeName));
  router.service(Health, grpcHealth({ ...needs, services }));
  return router.handlers;
}
