/**
 * `node agent.cjs pull`: pulls one image, then ends. A separate process, so that a hostile registry or archive can neither block nor
 * exhaust the agent. It has no data of the agent except the request on fd 3.
 */
import { Resolver } from "node:dns";
import { mkdirSync } from "node:fs";
import { type LookupFunction, Socket } from "node:net";
import { GatheredBytes } from "@cloche/protocol";
import { ImageError } from "./image-error.ts";
import { isDiskFull, pullImage } from "./image-puller.ts";
import { LayoutSource, type ReadGuestFile } from "./layout.ts";
import { type PullMessage, type PullRequest, readFailed } from "./pull-protocol.ts";
import { parseReference } from "./reference.ts";
import { RegistrySource } from "./registry.ts";
import type { ImageSource } from "./source.ts";

export async function runPullProcess(): Promise<void> {
  const channel = new Channel(new Socket({ fd: 3, readable: true, writable: true }));
  let exitCode = 0;
  try {
    const request = await channel.request();
    const reference = parseReference(request.image);
    mkdirSync(request.imagesFolder, { recursive: true, mode: 0o700 });
    const source: ImageSource =
      reference.kind === "layout"
        ? new LayoutSource(reference.path, reference.tag, (path, offset, length) =>
            channel.read(path, offset, length),
          )
        : new RegistrySource({
            ...reference,
            username: request.username,
            password: request.password,
            ca: request.ca,
            ...(request.dnsServers.length > 0 ? { lookup: lookupAt(request.dnsServers) } : {}),
          });
    const done = await pullImage({
      source,
      digest: reference.kind === "registry" ? reference.digest : undefined,
      architecture: request.architecture,
      imagesFolder: request.imagesFolder,
      rootFolder: request.rootFolder,
      note: (note) => channel.send({ note }),
      progress: (progress) => channel.send({ progress }),
      pause: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
    });
    channel.send({ done });
  } catch (error) {
    exitCode = 1;
    channel.send({ failed: { message: publicMessage(error), diskFull: isDiskFull(error) } });
    if (!(error instanceof ImageError))
      process.stderr.write(
        `${JSON.stringify({ level: "warn", message: "pull failed", error: String(error) })}\n`,
      );
  }
  await channel.close();
  process.exit(exitCode);
}

function publicMessage(error: unknown): string {
  if (error instanceof ImageError) return error.message;
  if (isDiskFull(error)) return "the sandbox's disk is full";
  const { code } = error as NodeJS.ErrnoException;
  return `the image could not be pulled${typeof code === "string" ? ` (${code})` : ""}`;
}

/** The agent at the other end of fd 3. */
class Channel {
  readonly #socket: Socket;
  readonly #chunks: AsyncIterator<Buffer>;
  #buffered: Buffer = Buffer.alloc(0);
  #turn: Promise<unknown> = Promise.resolve();

  constructor(socket: Socket) {
    this.#socket = socket;
    this.#chunks = socket[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    socket.on("error", () => process.exit(1)); // the agent is gone
  }

  async request(): Promise<PullRequest> {
    while (!this.#buffered.includes(0x0a)) await this.#more(1);
    const end = this.#buffered.indexOf(0x0a);
    const line = this.#buffered.toString("utf8", 0, end);
    this.#buffered = this.#buffered.subarray(end + 1);
    return JSON.parse(line) as PullRequest;
  }

  send(message: PullMessage): void {
    this.#socket.write(`${JSON.stringify(message)}\n`);
  }

  /** Answers come in the order of the requests. */
  read: ReadGuestFile = (path, offset, length) => {
    this.send({ read: { path, offset, length } });
    const answer = this.#turn.then(() => this.#answer());
    this.#turn = answer.catch(() => undefined);
    return answer;
  };

  close(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#socket.end(resolve);
    return promise;
  }

  async #answer(): Promise<Buffer> {
    const length = (await this.#exactly(4)).readUInt32BE(0);
    if (length !== readFailed) return this.#exactly(length);
    const reason = await this.#exactly((await this.#exactly(4)).readUInt32BE(0));
    throw new ImageError(reason.toString("utf8"));
  }

  async #exactly(length: number): Promise<Buffer> {
    await this.#more(length - this.#buffered.length);
    const bytes = this.#buffered.subarray(0, length);
    this.#buffered = this.#buffered.subarray(length);
    return bytes;
  }

  /** Reads at least so many bytes more. */
  async #more(bytes: number): Promise<void> {
    if (bytes <= 0) return;
    const gathered = new GatheredBytes();
    while (gathered.length < bytes) {
      const { done, value } = await this.#chunks.next();
      if (done === true) process.exit(1); // the agent is gone
      gathered.push(value);
    }
    this.#buffered = Buffer.concat([this.#buffered, gathered.take()]);
  }
}

/** Resolves names at the sandbox's name servers, because the agent's root does not have the sandbox's resolver file. */
function lookupAt(servers: readonly string[]): LookupFunction {
  const resolver = new Resolver({ timeout: 3_000, tries: 2 });
  resolver.setServers([...servers]);
  return (hostname, options, callback) => {
    if (hostname === "localhost") {
      if (options.all === true) callback(null, [{ address: "127.0.0.1", family: 4 }]);
      else callback(null, "127.0.0.1", 4);
      return;
    }
    resolver.resolve4(hostname, (error, addresses) => {
      const first = addresses?.[0];
      if (error !== null || first === undefined) callback(error ?? new Error("no address"), "", 4);
      else if (options.all === true)
        callback(
          null,
          addresses.map((address) => ({ address, family: 4 })),
        );
      else callback(null, first, 4);
    });
  };
}
