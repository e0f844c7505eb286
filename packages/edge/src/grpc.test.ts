/** A stock gRPC client reaches a stock gRPC server on a port, through a real edge. */
import * as grpc from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { baseDomain, Rig } from "./testing/rig.ts";

const plain = { serialize: (value: Buffer) => value, deserialize: (bytes: Buffer) => bytes };
const methodOf = (path: string, requestStream: boolean, responseStream: boolean) => ({
  path,
  requestStream,
  responseStream,
  requestSerialize: plain.serialize,
  requestDeserialize: plain.deserialize,
  responseSerialize: plain.serialize,
  responseDeserialize: plain.deserialize,
});
const service = {
  unary: methodOf("/test.Echo/Unary", false, false),
  up: methodOf("/test.Echo/Up", true, false),
  both: methodOf("/test.Echo/Both", true, true),
};

async function startServer(): Promise<{ server: grpc.Server; port: number }> {
  const server = new grpc.Server();
  server.addService(service, {
    unary: (call: grpc.ServerUnaryCall<Buffer, Buffer>, done: grpc.sendUnaryData<Buffer>) => {
      if (call.request.length === 0)
        return done({ code: grpc.status.INVALID_ARGUMENT, details: "it is empty" });
      const trailers = new grpc.Metadata();
      trailers.set("x-saw", String(call.metadata.get("authorization").length));
      done(null, call.request, trailers);
    },
    up: (call: grpc.ServerReadableStream<Buffer, Buffer>, done: grpc.sendUnaryData<Buffer>) => {
      let bytes = 0;
      call.on("data", (chunk: Buffer) => (bytes += chunk.length));
      call.on("end", () => done(null, Buffer.from(String(bytes))));
    },
    both: (call: grpc.ServerDuplexStream<Buffer, Buffer>) => {
      call.on("data", (chunk: Buffer) => call.write(chunk));
      call.on("end", () => call.end());
    },
  });
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const bound = (error: Error | null, port: number): void => (error === null ? resolve(port) : reject(error));
  server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), bound);
  return { server, port: await promise };
}

test.each(["with TLS, by the port's own domain", "without TLS, by headers"])("%s", async (how) => {
  await using rig = await Rig.startChannel();
  const { server, port } = await startServer();
  const host = `${port}-${sandboxA}.${baseDomain}`;
  const client = how.startsWith("with TLS")
    ? new grpc.Client(`127.0.0.1:${rig.port}`, grpc.credentials.createSsl(Buffer.from(rig.ca)), {
        "grpc.ssl_target_name_override": host,
        "grpc.default_authority": host,
      })
    : new grpc.Client(`127.0.0.1:${rig.plainPort}`, grpc.credentials.createInsecure());
  const metadata = new grpc.Metadata();
  metadata.set("authorization", (await rig.bearer()).authorization);
  if (!how.startsWith("with TLS")) {
    metadata.set("x-sandbox-id", sandboxA);
    metadata.set("x-sandbox-port", String(port));
  }
  const { serialize, deserialize } = plain;
  const unary = (body: Buffer, meta = metadata) =>
    new Promise<{ answer: Buffer | undefined; error: grpc.ServiceError | null; trailers: grpc.Metadata }>(
      (resolve) => {
        let error: grpc.ServiceError | null = null;
        let answer: Buffer | undefined;
        const done = (failure: grpc.ServiceError | null, value?: Buffer): void => {
          error = failure;
          answer = value;
        };
        client
          .makeUnaryRequest("/test.Echo/Unary", serialize, deserialize, body, meta, {}, done)
          .on("status", ({ metadata: trailers }) => setImmediate(resolve, { answer, error, trailers }));
      },
    );

  const good = await unary(Buffer.from("hello"));
  expect(good.answer?.toString()).toBe("hello");
  expect(good.trailers.get("x-saw")).toEqual(["0"]);
  expect((await unary(Buffer.alloc(0))).error).toMatchObject({
    code: grpc.status.INVALID_ARGUMENT,
    details: "it is empty",
  });
  expect((await unary(Buffer.from("x"), new grpc.Metadata())).error?.code).toBe(
    how.startsWith("with TLS") ? grpc.status.UNAUTHENTICATED : grpc.status.UNIMPLEMENTED,
  );

  const both = client.makeBidiStreamRequest("/test.Echo/Both", serialize, deserialize, metadata);
  for (let round = 0; round < 50; round += 1) {
    both.write(Buffer.from(`round ${round}`));
    const [echoed] = await new Promise<[Buffer]>((resolve) =>
      both.once("data", (chunk: Buffer) => resolve([chunk])),
    );
    expect(echoed.toString()).toBe(`round ${round}`);
  }
  const status = new Promise<grpc.StatusObject>((resolve) => both.once("status", resolve));
  both.end();
  expect((await status).code).toBe(grpc.status.OK);

  const sum = new Promise<string>((resolve, reject) => {
    const up = client.makeClientStreamRequest(
      "/test.Echo/Up",
      serialize,
      deserialize,
      metadata,
      (error, value) => (error ? reject(error) : resolve(String(value))),
    );
    for (let piece = 0; piece < 100; piece += 1) up.write(Buffer.alloc(64 * 1024));
    up.end();
  });
  expect(await sum).toBe(String(100 * 64 * 1024));
  client.close();
  server.forceShutdown();
});
