/** gRPC's server reflection from the generated descriptors: tools such as grpcurl need no proto files. No API key. */
import {
  createRegistry,
  type DescFile,
  type DescMethod,
  type DescService,
  type Registry,
  toBinary,
} from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { ServerReflection, type ServerReflectionRequest } from "@cloche/protocol/grpc-reflection";
import { Code, ConnectError, type ServiceImpl } from "@connectrpc/connect";
import { gatewayLimits } from "../limits.ts";

type Answer = { file: DescFile } | { notFound: string };

export function grpcReflection(services: readonly DescService[]): ServiceImpl<typeof ServerReflection> {
  const files = new Map<string, DescFile>();
  const include = (file: DescFile): void => {
    if (files.has(file.proto.name)) return;
    files.set(file.proto.name, file);
    file.dependencies.forEach(include);
  };
  for (const { file } of services) include(file);
  const registry = createRegistry(...files.values());

  const fileNamed = (name: string): Answer => {
    const file = files.get(name);
    return file === undefined ? { notFound: `there is no file ${JSON.stringify(name)}` } : { file };
  };
  const answerTo = ({ messageRequest: asked }: ServerReflectionRequest) => {
    switch (asked.case) {
      case "listServices":
        return listed(services);
      case "fileByFilename":
        return described(fileNamed(asked.value));
      case "fileContainingSymbol": {
        const file = fileOfSymbol(registry, asked.value);
        const notFound = `there is no symbol ${JSON.stringify(asked.value)}`;
        return described(file === undefined ? { notFound } : fileNamed(file.proto.name));
      }
      case "fileContainingExtension":
      case "allExtensionNumbersOfType":
        return refused(Code.NotFound, "the services use no extensions");
      default:
        return refused(Code.InvalidArgument, "message_request is missing or unknown");
    }
  };

  return {
    async *serverReflectionInfo(requests, { signal }) {
      let count = 0;
      for await (const originalRequest of until(signal, requests)) {
        if (++count > gatewayLimits.reflectionRequests) {
          const message = `more than ${gatewayLimits.reflectionRequests} requests in one stream`;
          throw new ConnectError(message, Code.ResourceExhausted);
        }
        const { host: validHost } = originalRequest;
        yield { validHost, originalRequest, messageResponse: answerTo(originalRequest) };
      }
    },
  };
}

const listed = (services: readonly DescService[]) => ({
  case: "listServicesResponse" as const,
  value: { service: services.map(({ typeName: name }) => ({ name })) },
});

const refused = (errorCode: Code, errorMessage: string) => ({
  case: "errorResponse" as const,
  value: { errorCode, errorMessage },
});

function described(answer: Answer) {
  if ("notFound" in answer) return refused(Code.NotFound, answer.notFound);
  const files = new Set<DescFile>();
  const include = (file: DescFile): void => {
    if (files.has(file)) return;
    files.add(file);
    file.dependencies.forEach(include);
  };
  include(answer.file);
  const fileDescriptorProto = [...files].map(({ proto }) => toBinary(FileDescriptorProtoSchema, proto));
  return { case: "fileDescriptorResponse" as const, value: { fileDescriptorProto } };
}

/** The file of a type or service, or of a part of one: a method, a field, a value of an enum. */
function fileOfSymbol(registry: Registry, name: string): DescFile | undefined {
  const whole = registry.get(name);
  if (whole !== undefined) return whole.file;
  const cut = name.lastIndexOf(".");
  const parent = registry.get(name.slice(0, Math.max(cut, 0)));
  const part = name.slice(cut + 1);
  switch (parent?.kind) {
    case "service":
      return parent.methods.some((method: DescMethod) => method.name === part) ? parent.file : undefined;
    case "message":
      return parent.members.some((member) => member.name === part) ? parent.file : undefined;
    case "enum":
      return parent.values.some((value) => value.name === part) ? parent.file : undefined;
    default:
      return undefined;
  }
}

/** The requests of `source` until the signal aborts, so that an open stream does not delay the gateway's end. */
async function* until<T>(signal: AbortSignal, source: AsyncIterable<T>): AsyncGenerator<T> {
  const iterator = source[Symbol.asyncIterator]();
  const aborted = Promise.withResolvers<IteratorResult<T>>();
  const end = (): void => aborted.resolve({ done: true, value: undefined });
  if (signal.aborted) end();
  signal.addEventListener("abort", end, { once: true });
  try {
    for (;;) {
      const next = await Promise.race([iterator.next(), aborted.promise]);
      if (next.done) return;
      yield next.value;
    }
  } finally {
    signal.removeEventListener("abort", end);
  }
}
