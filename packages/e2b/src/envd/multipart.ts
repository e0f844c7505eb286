import { Readable } from "node:stream";
import { Busboy, type BusboyInstance } from "@fastify/busboy";
import { E2bError } from "../e2b-error.ts";

export interface Upload {
  /** The part's file name as it was sent, with its directories. */
  name: string;
  content: Readable;
}

const mostFiles = 10_000;
/** Parts of another name are not used. Gzip makes a million of them out of some hundred KB. */
const mostFields = 100;

/** The `file` parts of a multipart body, in order. The next part comes after the content of the last one was read. */
export async function* uploads(body: Readable, contentType: string): AsyncGenerator<Upload, void> {
  const parser = parserOf(contentType);
  const arrived: Upload[] = [];
  let failure: unknown;
  let isOver = false;
  let wake = (): void => undefined;
  parser.on("file", (field, content, name) => {
    // The parser emits the error of a part that is cut off, also before anybody reads the part, and does not destroy it.
    content.on("error", (error: Error) => content.destroy(error));
    if (field === "file") arrived.push({ name: name ?? "", content });
    else content.resume();
    wake();
  });
  const refuse = (what: string) => () => {
    failure ??= new E2bError("invalid_argument", `a body has at most ${what}`);
    wake();
  };
  parser.on("filesLimit", refuse(`${mostFiles} files`));
  parser.on("fieldsLimit", refuse(`${mostFields} parts with another name than file`));
  // Of parts that have no name, and are neither.
  parser.on("partsLimit", refuse(`${mostFiles + mostFields} parts`));
  const onFailure = (error: unknown): void => {
    failure ??= new E2bError("invalid_argument", `the body is not valid multipart: ${messageOf(error)}`, {
      cause: error,
    });
    for (const { content } of arrived) content.destroy(failure as Error);
    wake();
  };
  parser.on("error", onFailure);
  body.once("error", onFailure);
  body.once("close", () => {
    if (!body.readableEnded) onFailure(new Error("it was cut off"));
  });
  parser.on("finish", () => {
    isOver = true;
    wake();
  });
  body.pipe(parser);
  try {
    for (;;) {
      const upload = arrived.shift();
      if (upload !== undefined) {
        yield upload;
        upload.content.resume();
      } else if (failure !== undefined) throw failure;
      else if (isOver) return;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
  } finally {
    body.unpipe(parser);
    body.resume();
    for (const { content } of arrived) content.resume();
  }
}

function parserOf(contentType: string): BusboyInstance {
  try {
    return Busboy({
      headers: { "content-type": contentType },
      preservePath: true,
      // A part without a file name is content too: the path is in the URL.
      isPartAFile: (field) => field === "file",
      limits: { files: mostFiles, fields: mostFields, parts: mostFiles + mostFields },
    });
  } catch (error) {
    throw new E2bError("invalid_argument", `content-type is not valid multipart: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
