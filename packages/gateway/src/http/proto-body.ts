import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { type DescMessage, fromBinary } from "@bufbuild/protobuf";
import { ClocheError, limits } from "@cloche/protocol";

/** Of gRPC's frame before each message: one byte of flags, four of length. */
const prefixBytes = 5;

/** What a content type says of its body: one message of protobuf, or gRPC's frames of them; undefined: something else. */
function formOf(contentType: string): "message" | "frames" | undefined {
  const [type = ""] = contentType.toLowerCase().split(";", 1);
  if (type.trim() === "application/proto") return "message";
  return /^application\/grpc(?:-web)?(?:\+proto)?$/.test(type.trim()) ? "frames" : undefined;
}

/**
 * Refuses a body in protobuf that is none, and one whose compression is broken (400): Connect would answer these as errors of
 * its own making (500). What cannot be looked into (an unknown compression, a frame cut short) is left to Connect.
 */
export function checkProto(
  body: Buffer,
  contentType: string,
  compression: string | undefined,
  input: DescMessage,
): void {
  const form = formOf(contentType);
  const framed = form === "frames";
  const compressed = framed ? ((body[0] ?? 0) & 1) === 1 : compression !== undefined;
  if (framed && (body.length < prefixBytes || body.readUInt32BE(1) !== body.length - prefixBytes)) return;
  const message = unpacked(framed ? body.subarray(prefixBytes) : body, compressed ? compression : undefined);
  if (form === undefined || message === undefined) return;
  try {
    fromBinary(input, message);
  } catch (error) {
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
