import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { type DescMessage, fromBinary } from "@bufbuild/protobuf";
import { ClocheError, limits } from "@cloche/protocol";
import { boundProtoFields } from "./proto-fields.ts";

/** Bytes of gRPC's frame before each message: one of flags, four of length. */
const prefixBytes = 5;

interface Form {
  /** gRPC's frames of messages, instead of one message. */
  framed: boolean;
  isJson: boolean;
}

/** The form of a body by its content type; undefined: other. */
function formOf(contentType: string): Form | undefined {
  const [type = ""] = contentType.toLowerCase().split(";", 1);
  const [, grpc, codec] = /^application\/(grpc(?:-web)?)?\+?(proto|json)?$/.exec(type.trim()) ?? [];
  if (grpc === undefined && codec === undefined) return undefined;
  return { framed: grpc !== undefined, isJson: codec === "json" };
}

/**
 * Refuses a body that is not valid protobuf or whose compression is broken (400), which Connect would answer as
 * internal errors (500); JSON that is compressed or framed goes to `checkJson`. Bodies that cannot be checked here (unknown compression, incomplete frame) are left to
 * Connect.
 */
export function checkProto(
  body: Buffer,
  contentType: string,
  compression: string | undefined,
  input: DescMessage,
  checkJson: (body: Buffer) => void,
): void {
  const form = formOf(contentType);
  const framed = form?.framed === true;
  const compressed = framed ? ((body[0] ?? 0) & 1) === 1 : compression !== undefined;
  // Connect parses the first message before it refuses a second one.
  const end = framed && body.length >= prefixBytes ? prefixBytes + body.readUInt32BE(1) : body.length;
  if (framed && (body.length < prefixBytes || body.length < end)) return;
  const message = unpacked(
    framed ? body.subarray(prefixBytes, end) : body,
    compressed ? compression : undefined,
  );
  if (form === undefined || message === undefined) return;
  if (form.isJson) return checkJson(message);
  try {
    boundProtoFields(input, message);
    fromBinary(input, message);
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw new ClocheError(
      "invalid_argument",
      `request body is no ${input.typeName} in protobuf: ${(error as Error).message}`,
      { cause: error },
    );
  }
}

function unpacked(data: Buffer, compression: string | undefined): Buffer | undefined {
  if (compression === undefined || compression === "identity") return data;
  const bounded = { maxOutputLength: limits.gatewayBodyBytes };
  try {
    if (compression === "gzip") return gunzipSync(data, bounded);
    if (compression === "br") return brotliDecompressSync(data, bounded);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE") return undefined;
    throw new ClocheError("invalid_argument", `request body is not sound ${compression}`, { cause: error });
  }
  return undefined;
}
