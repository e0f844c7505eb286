/**
 * Bounds what is read of a storage's answer, whatever its length says and however it is packed: an object may be another than we
 * wrote, and a server may ignore the range. Redirects are not followed, because they could lead anywhere.
 */
import { ClocheError } from "@cloche/protocol";

/** Objects that are read whole are manifests and descriptions; a page of a list is smaller. */
export const wholeBytesMax = 256 * 1024 * 1024;

export function bounded(inner: typeof fetch, most = wholeBytesMax): typeof fetch {
  return async (input, init = {}) => {
    const response = await inner(input, { ...init, redirect: "manual" });
    if (response.body === null) return response;
    const { status, statusText, headers } = response;
    const asked = rangeOf(new Headers(init.headers).get("range"));
    const limit = response.ok ? Math.min(asked ?? most, most) : most;
    return new Response(response.body.pipeThrough(atMost(limit)), { status, statusText, headers });
  };
}

function atMost(limit: number): TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>> {
  let bytes = 0;
  return new TransformStream({
    transform(chunk, controller) {
      bytes += chunk.byteLength;
      if (bytes <= limit) controller.enqueue(chunk);
      else
        controller.error(new ClocheError("internal", `checkpoint storage answered more than ${limit} bytes`));
    },
  });
}

/** Bytes that a range asks for. */
function rangeOf(range: string | null): number | undefined {
  const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(range ?? "") ?? [];
  return from === undefined || to === undefined ? undefined : Number(to) - Number(from) + 1;
}
