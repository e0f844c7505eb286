/**
 * Bounds the fields of a caller's protobuf message. Parsing stops the process for every team, and a megabyte of empty
 * fields takes a hundred times as long as a megabyte of text.
 */
import { type DescField, type DescMessage, ScalarType } from "@bufbuild/protobuf";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { ClocheError, limits } from "@cloche/protocol";

const wires = new Map([
  [ScalarType.DOUBLE, WireType.Bit64],
  [ScalarType.FIXED64, WireType.Bit64],
  [ScalarType.SFIXED64, WireType.Bit64],
  [ScalarType.FLOAT, WireType.Bit32],
  [ScalarType.FIXED32, WireType.Bit32],
  [ScalarType.SFIXED32, WireType.Bit32],
  [ScalarType.STRING, WireType.LengthDelimited],
  [ScalarType.BYTES, WireType.LengthDelimited],
]);

const wireOfScalar = (type: ScalarType): WireType => wires.get(type) ?? WireType.Varint;

type MapField = DescField & { fieldKind: "map" };

/** What a field, or the key or value of a map's entry, holds. */
type Holds = Pick<DescField, "message" | "scalar">;

function wireOf({ message, scalar }: Holds): WireType {
  if (message !== undefined) return WireType.LengthDelimited;
  return scalar === undefined ? WireType.Varint : wireOfScalar(scalar);
}

const fieldOf = (message: DescMessage, number: number): DescField | undefined =>
  message.fields.find((field) => field.number === number);

/** Key and value of a map's entry have the numbers 1 and 2. */
function ofEntry({ mapKey, message, scalar }: MapField, number: number): Holds | undefined {
  if (number === 1) return { message: undefined, scalar: mapKey };
  return number === 2 ? { message, scalar } : undefined;
}

/**
 * Throws `resource_exhausted` for more than `most` fields, those of inner messages included; `invalid_argument` for a
 * field of another wire type than the schema's: the parser would read it as the schema says, and so differently from
 * here. Throws the reader's errors for other messages that are not valid.
 */
export function boundProtoFields(
  message: DescMessage,
  bytes: Uint8Array,
  most: number = limits.protoFields,
): void {
  const reader = new BinaryReader(bytes);
  let left = most;
  const spend = (fields: number): void => {
    left -= fields;
    if (left >= 0) return;
    const problem = `the message has more than ${most} fields; send fewer at once`;
    throw new ClocheError("resource_exhausted", problem, { resource: "body" });
  };
  const read = (end: number, holds: (number: number) => DescField | Holds | undefined): void => {
    while (reader.pos < end) {
      const [number, wire] = reader.tag();
      spend(1);
      const field = holds(number);
      const kind = field !== undefined && "fieldKind" in field ? field.fieldKind : undefined;
      const isPacked = kind === "list" && wire === WireType.LengthDelimited;
      const wanted = kind === "map" ? WireType.LengthDelimited : field && wireOf(field);
      // No message has groups.
      if (wire === WireType.StartGroup || (wanted !== undefined && wire !== wanted && !isPacked))
        throw new ClocheError("invalid_argument", `field ${number} has a wrong type on the wire`);
      if (wire !== WireType.LengthDelimited || field === undefined) {
        reader.skip(wire, number);
        continue;
      }
      const length = reader.uint32();
      const inner = reader.pos + length;
      if (kind === "map") read(inner, (one) => ofEntry(field as MapField, one));
      else if (field.message !== undefined) read(inner, (one) => fieldOf(field.message as DescMessage, one));
      else {
        if (isPacked && wanted !== wire) spend(length);
        reader.pos = inner;
      }
    }
  };
  read(bytes.length, (number) => fieldOf(message, number));
}
