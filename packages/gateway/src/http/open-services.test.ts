import { createFileRegistry, create, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema, FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Health, HealthCheckResponse_ServingStatus as Status } from "@cloche/protocol/grpc-health";
import {
  ServerReflection,
  ServerReflectionRequestSchema,
  type ServerReflectionRequest,
  type ServerReflectionResponse,
} from "@cloche/protocol/grpc-reflection";
import { Code, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { gatewayLimits } from "../limits.ts";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
let url: string;
beforeEach(async () => {
  f = await openFixture();
  url = `http://127.0.0.1:${f.listener.port}`;
});
afterEach(() => f.close());

describe("gRPC health, without a key", () => {
  it.each([
    ["gRPC", () => createGrpcTransport({ baseUrl: url })],
    ["gRPC-Web", () => createGrpcWebTransport({ baseUrl: url, httpVersion: "1.1" })],
  ])("checks the server, its services and nothing else, over %s", async (_name, transport) => {
    const health = createClient(Health, transport());
    for (const service of ["", "cloche.public.v1.SandboxService", "grpc.health.v1.Health"])
      expect((await health.check({ service })).status).toBe(Status.SERVING);
    await expect(health.check({ service: "no.Service" })).rejects.toMatchObject({ code: Code.NotFound });
    f.gateway.drain();
    expect((await health.check({})).status).toBe(Status.NOT_SERVING);
  });

  it("watches: the state at once, each change, and the end", async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const watch = health.watch({})[Symbol.asyncIterator]();
    expect((await watch.next()).value.status).toBe(Status.SERVING);
    f.gateway.drain();
    const changed = watch.next();
    await f.clock.advance(gatewayLimits.healthWatchMs);
    expect((await changed).value.status).toBe(Status.NOT_SERVING);
    await f.restart();
    expect(await watch.next()).toMatchObject({ done: true });
  });

  it("says NOT_SERVING to those who watch when it closes, and of a service that there is not that it is unknown", async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const [good, unknown] = ["", "no.Service"].map((service) =>
      health.watch({ service })[Symbol.asyncIterator](),
    );
    expect((await good?.next())?.value.status).toBe(Status.SERVING);
    expect((await unknown?.next())?.value.status).toBe(Status.SERVICE_UNKNOWN);
    const last = good?.next();
    await f.restart();
    expect((await last)?.value.status).toBe(Status.NOT_SERVING);
  });

  it("bounds the streams that are open at once, and still answers checks", async () => {
    const health = createClient(Health, createGrpcTransport({ baseUrl: url }));
    const left = new AbortController();
    const open = Array.from({ length: gatewayLimits.openStreamsOfAddress }, () =>
      health.watch({}, { signal: left.signal })[Symbol.asyncIterator](),
    );
    await Promise.all(open.map((watch) => watch.next()));
    const refused = health.watch({})[Symbol.asyncIterator]().next();
    await expect(refused).rejects.toMatchObject({ code: Code.ResourceExhausted });
    expect((await health.check({})).status).toBe(Status.SERVING);
    left.abort();
    const end = new AbortController();
    const again = (): Promise<unknown> =>
      health.watch({}, { signal: end.signal })[Symbol.asyncIterator]().next();
    const isOpen = (): Promise<boolean> => again().then(Boolean, () => false);
    await expect.poll(isOpen).toBe(true);
    end.abort();
  });
});

type Asked = ServerReflectionRequest["messageRequest"];

describe("gRPC reflection, without a key", () => {
  const asked = async (
    options: { interceptors?: Interceptor[] },
    ...questions: Asked[]
  ): Promise<ServerReflectionResponse[]> => {
    const client = createClient(ServerReflection, createGrpcTransport({ baseUrl: url, ...options }));
    const answers: ServerReflectionResponse[] = [];
    async function* requests() {
      for (const [index, messageRequest] of questions.entries()) {
        yield create(ServerReflectionRequestSchema, { host: "here", messageRequest });
        // Each is answered before the next is asked, with the stream open.
        await expect.poll(() => answers.length).toBe(index + 1);
      }
    }
    for await (const answer of client.serverReflectionInfo(requests())) answers.push(answer);
    return answers;
  };

  it("lists the services and describes them so that a client can be made from it", async () => {
    const [services, file] = await asked(
      {},
      { case: "listServices", value: "" },
      { case: "fileContainingSymbol", value: "cloche.public.v1.SandboxService" },
    );
    expect(services?.messageResponse.value).toMatchObject({
      service: [
        { name: "cloche.public.v1.SandboxService" },
        { name: "cloche.public.v1.ApiKeyService" },
        { name: "grpc.health.v1.Health" },
        { name: "grpc.reflection.v1.ServerReflection" },
      ],
    });
    expect(file).toMatchObject({ validHost: "here", originalRequest: { host: "here" } });
    if (file?.messageResponse.case !== "fileDescriptorResponse") throw new Error("no file");
    const protos = file.messageResponse.value.fileDescriptorProto.map((bytes) =>
      fromBinary(FileDescriptorProtoSchema, bytes),
    );
    const registry = createFileRegistry(create(FileDescriptorSetSchema, { file: protos.reverse() }));
    const service = registry.getService("cloche.public.v1.SandboxService");
    const made = createClient(service!, createGrpcTransport({ baseUrl: url })) as unknown as {
      listSandboxes(request: object, options: object): Promise<{ sandboxes: unknown[] }>;
    };
    const headers = { authorization: `Bearer ${f.secret}` };
    expect((await made.listSandboxes({}, { headers })).sandboxes).toEqual([]);
  });

  it.each<[string, Asked, string]>([
    ["a method", symbol("cloche.public.v1.SandboxService.CreateSandbox"), "fileDescriptorResponse"],
    ["a field", symbol("cloche.public.v1.CreateSandboxRequest.name"), "fileDescriptorResponse"],
    [
      "a file that is imported",
      { case: "fileByFilename", value: "google/protobuf/struct.proto" },
      "fileDescriptorResponse",
    ],
    ["no symbol", symbol("cloche.public.v1.Nothing"), "errorResponse"],
    ["no method", symbol("cloche.public.v1.SandboxService.Explode"), "errorResponse"],
    ["an internal service", symbol("cloche.host.v1.HostService"), "errorResponse"],
    ["an internal file", { case: "fileByFilename", value: "cloche/host/v1/host.proto" }, "errorResponse"],
    ["extensions", { case: "allExtensionNumbersOfType", value: "a.B" }, "errorResponse"],
    ["nothing", { case: undefined }, "errorResponse"],
  ])("answers to %s", async (_name, question, kind) => {
    const [answer] = await asked({}, question);
    expect(answer?.messageResponse.case).toBe(kind);
  });

  it("answers under the older name too", async () => {
    const older: Interceptor = (next) => (request) =>
      next({
        ...request,
        url: request.url.replace("reflection.v1.", "reflection.v1alpha."),
      } as typeof request);
    const [first] = await asked({ interceptors: [older] }, symbol("grpc.health.v1.Health"));
    expect(first?.messageResponse.case).toBe("fileDescriptorResponse");
  });

  it("lets go of a stream that its client keeps open when the gateway closes", async () => {
    const client = createClient(ServerReflection, createGrpcTransport({ baseUrl: url }));
    const held = Promise.withResolvers<void>();
    async function* requests() {
      yield create(ServerReflectionRequestSchema, { messageRequest: { case: "listServices", value: "" } });
      await held.promise;
    }
    const answers = client.serverReflectionInfo(requests())[Symbol.asyncIterator]();
    await answers.next();
    const ended = answers.next().then(
      ({ done }) => done,
      () => true,
    );
    await f.restart();
    expect(await ended).toBe(true);
    held.resolve();
  });
});

function symbol(value: string): Asked {
  return { case: "fileContainingSymbol", value };
}
