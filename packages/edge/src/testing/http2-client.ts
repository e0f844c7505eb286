/** Real HTTP/2 clients of a rig's edge: node's, and a bare one for frames that no library would send. */
import { once } from "node:events";
import http2, { type ClientHttp2Session, type ClientHttp2Stream } from "node:http2";
import tls from "node:tls";
import { sandboxA } from "./fake-gateway.ts";
import { baseDomain, type Rig } from "./rig.ts";

export interface Reply {
  status: number;
  headers: http2.IncomingHttpHeaders;
  body: string;
}

/** Ends with `using`. */
export function http2Client(rig: Rig, label = sandboxA): ClientHttp2Session & Disposable {
  const session = http2.connect(`https://127.0.0.1:${rig.port}`, {
    ca: rig.ca,
    servername: `${label}.${baseDomain}`,
    // This client queues whole bodies.
    maxSessionMemory: 512,
  });
  session.on("error", () => undefined);
  return Object.assign(session, { [Symbol.dispose]: () => session.destroy() });
}

export function open(
  rig: Rig,
  session: ClientHttp2Session,
  headers: http2.OutgoingHttpHeaders,
  options: http2.ClientSessionRequestOptions = {},
): ClientHttp2Stream {
  const stream = session.request({ ":authority": rig.host(), ...headers }, options);
  stream.on("error", () => undefined);
  return stream;
}

export async function replyOf(stream: ClientHttp2Stream): Promise<Reply> {
  const [headers] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
  const chunks: Buffer[] = [];
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  if (!stream.readableEnded) await once(stream, "end");
  return { status: Number(headers[":status"]), headers, body: Buffer.concat(chunks).toString() };
}

/** One request and its whole answer. Rejects when the stream is reset. */
export function askHttp2(
  rig: Rig,
  session: ClientHttp2Session,
  headers: http2.OutgoingHttpHeaders,
  body?: string | Buffer,
): Promise<Reply> {
  const stream = session.request({ ":authority": rig.host(), ...headers }, { endStream: body === undefined });
  const reset = new Promise<never>((_resolve, reject) => stream.once("error", reject));
  if (body !== undefined) stream.end(body);
  return Promise.race([replyOf(stream), reset]);
}

export const frameTypes = {
  headers: 1,
  priority: 2,
  settings: 4,
  ping: 6,
  goaway: 7,
  windowUpdate: 8,
  continuation: 9,
} as const;

/** One frame (RFC 9113, 4.1). */
export function frame(
  type: number,
  flags: number,
  streamId: number,
  payload: Buffer = Buffer.alloc(0),
): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(streamId, 5);
  return Buffer.concat([head, payload]);
}

/** A connection that has sent its preface and settings, for any frames that follow. */
export async function bareHttp2(rig: Rig): Promise<tls.TLSSocket> {
  const socket = tls.connect({
    host: "127.0.0.1",
    port: rig.port,
    servername: `${sandboxA}.${baseDomain}`,
    ca: rig.ca,
    ALPNProtocols: ["h2"],
  });
  socket.on("error", () => undefined);
  await once(socket, "secureConnect");
  socket.write(
    Buffer.concat([Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(frameTypes.settings, 0, 0)]),
  );
  return socket;
}

/** Headers without compression (RFC 7541, 6.2.2). */
export const block = (headers: Record<string, string>): Buffer =>
  Buffer.concat(
    Object.entries(headers).flatMap(([name, value]) => [
      Buffer.of(0, name.length),
      Buffer.from(name),
      Buffer.of(value.length),
      Buffer.from(value),
    ]),
  );
export const requestOf = (rig: Rig, method = "GET", path = "/v1/x"): Buffer =>
  block({ ":method": method, ":scheme": "https", ":path": path, ":authority": rig.host() });
