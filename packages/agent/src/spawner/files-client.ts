import type { GuestUpload, GuestWatch, WriteWish } from "./file-types.ts";
import { type Answer, FilesChannel } from "./files-channel.ts";
import { OpenFile, readVersion } from "./open-file.ts";
import type { OwnFiles } from "./own-files.ts";
import type { GuestEntry, GuestFile, GuestFiles, GuestPath } from "./file-types.ts";
import { Upload } from "./upload.ts";
import {
  type Frame,
  frameTypes,
  FrameWriter,
  listFlags,
  PayloadReader,
  readMaxBytes,
  statFlags,
  uploadEndFlags,
  uploadFlags,
  writeFlags,
} from "./wire.ts";

/** Data in more pieces than this (from a client that sends byte by byte) is joined before it is sent on. */
const piecesMax = 128;

/** A client of one guest's file server, as root or as the user given to `as`. */
export class FilesClient implements GuestFiles {
  readonly #channel: FilesChannel;
  readonly #own: OwnFiles;
  readonly #user: string | undefined;

  /** `send`: sends a frame and the rest of its payload. */
  constructor(
    send: FilesChannel | ((frame: Buffer, rest?: readonly Buffer[]) => void),
    own: OwnFiles,
    user?: string,
  ) {
    this.#channel = send instanceof FilesChannel ? send : new FilesChannel(send);
    this.#own = own;
    this.#user = user;
  }

  as(user: string): GuestFiles {
    return new FilesClient(this.#channel, this.#own, user);
  }

  async lstat(path: GuestPath, withAttributes = false): Promise<GuestEntry> {
    const flags = withAttributes ? statFlags.attributes : 0;
    return only(await this.#ask(frameTypes.lstat, flags, new FrameWriter().string(path)));
  }

  async stat(path: GuestPath, withAttributes = false): Promise<GuestEntry> {
    const flags = statFlags.follow | (withAttributes ? statFlags.attributes : 0);
    return only(await this.#ask(frameTypes.lstat, flags, new FrameWriter().string(path)));
  }

  async open(path: GuestPath, prefetchBytes = readMaxBytes): Promise<GuestFile> {
    const writer = new FrameWriter().string(path).u32(prefetchBytes);
    const answer = new PayloadReader((await this.#ask(frameTypes.open, 0, writer)).payload);
    const handle = answer.u32();
    const descriptor = answer.u32();
    const size = answer.u64();
    const version = readVersion(answer);
    const start = answer.rest();
    return new OpenFile(
      handle,
      version,
      // Size 0 with content: a generated file that did not fit into the first read.
      size === 0 && handle !== 0 && start.length > 0 ? null : size,
      start,
      {
        read: (offset, length) => this.#read(handle, offset, length),
        own: () => this.#own.open(descriptor, "read"),
        close: () => this.#close(handle),
      },
    );
  }

  async write(path: GuestPath, data: Buffer | readonly Buffer[], mode?: number): Promise<GuestEntry> {
    return only(await this.#write(path, data, mode, 0));
  }

  async put(path: GuestPath, data: Buffer, mode: number): Promise<void> {
    await this.#write(path, data, mode, writeFlags.quiet);
  }

  together<Answers>(ask: () => Answers): Answers {
    return this.#channel.together(ask);
  }

  #write(
    path: GuestPath,
    data: Buffer | readonly Buffer[],
    mode: number | undefined,
    flags: number,
  ): Promise<Answer> {
    const pieces = Buffer.isBuffer(data) ? [data] : gathered(data);
    const bytes = pieces.reduce((sum, piece) => sum + piece.length, 0);
    const writer = new FrameWriter()
      .string(path)
      .u32(mode ?? 0xffffffff)
      .u32(bytes);
    return this.#ask(frameTypes.write, flags, writer, { pieces, bytes });
  }

  async remove(path: GuestPath, recursive: boolean): Promise<void> {
    await this.#ask(frameTypes.remove, recursive ? 1 : 0, new FrameWriter().string(path));
  }

  async list(
    path: GuestPath,
    depth: number,
    limit: number,
    withAttributes = false,
  ): Promise<{ entries: GuestEntry[]; truncated: boolean }> {
    const writer = new FrameWriter().string(path).u32(depth).u32(limit);
    const wanted = withAttributes ? listFlags.attributes : 0;
    const { entries, flags } = await this.#ask(frameTypes.list, wanted, writer);
    return { entries, truncated: flags !== 0 };
  }

  async mkdir(path: GuestPath, parents: boolean): Promise<GuestEntry> {
    return only(await this.#ask(frameTypes.mkdir, parents ? 1 : 0, new FrameWriter().string(path)));
  }

  async move(source: GuestPath, destination: GuestPath): Promise<GuestEntry> {
    return only(await this.#ask(frameTypes.move, 0, new FrameWriter().string(source).string(destination)));
  }

  async sync(): Promise<void> {
    await this.#ask(frameTypes.sync, 0, new FrameWriter());
  }

  async setHostname(hostname: string): Promise<void> {
    await this.#ask(frameTypes.hostname, 0, new FrameWriter().string(hostname));
  }

  async setBootId(bootId: string): Promise<void> {
    await this.#ask(frameTypes.bootId, 0, new FrameWriter().string(bootId));
  }

  async upload(
    path: GuestPath,
    { mode, append, owner, group, attributes = [] }: WriteWish,
  ): Promise<GuestUpload> {
    const writer = new FrameWriter()
      .string(path)
      .u32(mode ?? 0xffffffff)
      .string(owner ?? "")
      .string(group ?? "")
      .u32(attributes.length);
    for (const { name, value } of attributes) writer.string(name).u32(value.length).raw(value);
    const { payload } = await this.#ask(frameTypes.upload, append === true ? uploadFlags.append : 0, writer);
    const answer = new PayloadReader(payload);
    const [handle, descriptor] = [answer.u32(), answer.u32()];
    const channel = this.#channel;
    return new Upload({
      own: () => this.#own.open(descriptor, "write"),
      data: (offset, pieces, bytes) => {
        const data = new FrameWriter().u32(handle).u64(offset).u32(bytes);
        return channel.ask(frameTypes.uploadData, 0, data, undefined, { pieces: gathered(pieces), bytes });
      },
      commit: async () => only(await channel.ask(frameTypes.uploadEnd, 0, new FrameWriter().u32(handle))),
      abandon: () => channel.ask(frameTypes.uploadEnd, uploadEndFlags.abandon, new FrameWriter().u32(handle)),
    });
  }

  async copy(source: GuestPath, destination: GuestPath, recursive: boolean): Promise<GuestEntry> {
    const writer = new FrameWriter().string(source).string(destination);
    return only(await this.#ask(frameTypes.copy, Number(recursive), writer));
  }

  async chmod(path: GuestPath, mode: number, recursive: boolean): Promise<GuestEntry> {
    return only(
      await this.#ask(frameTypes.chmod, Number(recursive), new FrameWriter().string(path).u32(mode)),
    );
  }

  async chown(path: GuestPath, user: string, group: string, recursive: boolean): Promise<GuestEntry> {
    const writer = new FrameWriter().string(path).string(user).string(group);
    return only(await this.#ask(frameTypes.chown, Number(recursive), writer));
  }

  watch(path: GuestPath, recursive: boolean): Promise<GuestWatch> {
    return this.#channel.watch(new FrameWriter().string(path), Number(recursive), this.#user);
  }

  /** A frame from the file server. */
  onFrame(frame: Frame): void {
    this.#channel.onFrame(frame);
  }

  /** The guest is gone: pending and later requests fail. */
  onLost(error: Error): void {
    this.#channel.onLost(error);
  }

  #ask(
    type: number,
    flags: number,
    writer: FrameWriter,
    rest?: { pieces: readonly Buffer[]; bytes: number },
  ): Promise<Answer> {
    return this.#channel.ask(type, flags, writer, this.#user, rest);
  }

  async #read(handle: number, offset: number, length: number): Promise<Buffer> {
    const writer = new FrameWriter().u32(handle).u64(offset).u32(length);
    return (await this.#channel.ask(frameTypes.read, 0, writer)).payload;
  }

  #close(handle: number): void {
    this.#channel.notify(frameTypes.close, new FrameWriter().u32(handle));
  }
}

function only(answer: Answer): GuestEntry {
  const entry = answer.entries[0];
  if (!entry) throw new RangeError("the file server answered without an entry");
  return entry;
}

const gathered = (pieces: readonly Buffer[]): readonly Buffer[] =>
  pieces.length > piecesMax ? [Buffer.concat(pieces)] : pieces;
