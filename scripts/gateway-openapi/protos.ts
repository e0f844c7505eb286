// The public protos with their comments, as buf reads them.
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import {
  createFileRegistry,
  type DescEnum,
  type DescField,
  type DescMessage,
  type DescMethod,
  type DescService,
  fromBinary,
} from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";

const root = fileURLToPath(new URL("../..", import.meta.url));
const file = "cloche/public/v1/sandbox.proto";

export interface Protos {
  services: readonly DescService[];
  messages: readonly DescMessage[];
  enums: readonly DescEnum[];
  /** The comments above and behind a declaration, as one text; empty: there is none. */
  commentOf(declaration: DescMethod | DescMessage | DescField | DescEnum): string;
}

export function readProtos(): Protos {
  const buf = join(root, "node_modules/.bin/buf");
  const words = ["build", "spec/proto", "--path", `spec/proto/${file}`, "-o", "-"];
  const image = execFileSync(buf, words, { cwd: root, maxBuffer: 16 * 1024 * 1024 });
  const set = fromBinary(FileDescriptorSetSchema, image);
  const found = createFileRegistry(set).getFile(file);
  const locations = set.file.find(({ name }) => name === file)?.sourceCodeInfo?.location ?? [];
  if (found === undefined || locations.length === 0) throw new Error(`buf did not read ${file}`);
  const comments = new Map(
    locations.map(({ path, leadingComments, trailingComments }) => [
      path.join("."),
      [leadingComments, trailingComments].map(unwrapped).filter(Boolean).join(" "),
    ]),
  );
  const { services, messages, enums } = found;
  return {
    services,
    messages,
    enums,
    commentOf: (declaration) => comments.get(placeOf(declaration).join(".")) ?? "",
  };
}

const unwrapped = (comment: string): string => comment.replaceAll(/\s+/g, " ").trim();

/** A declaration's place in its file, in the numbers of protobuf's own descriptors. */
function placeOf(declaration: DescMethod | DescMessage | DescField | DescEnum): number[] {
  switch (declaration.kind) {
    case "rpc": {
      const service = declaration.parent;
      return [6, service.file.services.indexOf(service), 2, service.methods.indexOf(declaration)];
    }
    case "field":
      return [...placeOf(declaration.parent), 2, declaration.parent.fields.indexOf(declaration)];
    case "message":
      return [4, declaration.file.messages.indexOf(declaration)];
    case "enum":
      return [5, declaration.file.enums.indexOf(declaration)];
  }
}
