/** Checks the body of a gateway call before Connect parses it: size, valid JSON of the right types, valid protobuf. */
import type { IncomingMessage } from "node:http";
import type { DescMessage } from "@bufbuild/protobuf";
import { type BodyBounds, parseJson, readBody } from "@cloche/base";
import { ClocheError, ignoresUnknownFields } from "@cloche/protocol";
import { connectErrorFrom } from "../errors.ts";
import { checkJsonTypes } from "./json-types.ts";
import { checkProto } from "./proto-body.ts";

/** Yields the body once. `bounds` is asked once the body is read. Throws Connect errors, so that each protocol sends them in its own form. */
export async function* checkedBody(
  request: IncomingMessage,
  isPlainJson: boolean,
  input: DescMessage,
  bounds: () => BodyBounds,
): AsyncIterable<Uint8Array> {
  let body: Buffer;
  try {
    body = await readBody(request, bounds());
    const check = (json: Buffer): void => checkJson(json, input, ignoresUnknownFields(request.headers));
    if (isPlainJson) {
      // Connect needs a message: an empty body counts as the empty message, as on the data plane.
      if (body.length === 0) body = Buffer.from("{}");
      check(body);
    } else {
      const {
        "content-type": contentType = "",
        "content-encoding": unary,
        "grpc-encoding": framed,
      } = request.headers;
      checkProto(body, contentType, unary ?? (typeof framed === "string" ? framed : undefined), input, check);
    }
  } catch (error) {
    throw connectErrorFrom(ClocheError.from(error));
  }
  yield body;
}

function checkJson(body: Buffer, input: DescMessage, ignoresUnknown: boolean): void {
  let parsed: unknown;
  try {
    parsed = parseJson(body);
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw new ClocheError("invalid_argument", `request body is not valid JSON: ${(error as Error).message}`, {
      cause: error,
    });
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    throw new ClocheError("invalid_argument", "request body must be a JSON object");
  }
  checkJsonTypes(input, parsed, ignoresUnknown);
}
