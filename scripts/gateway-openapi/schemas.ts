// Messages of the public protos as JSON Schemas, in the JSON that the gateway reads and prints: snake_case, 32-bit integers
// and doubles as numbers, enums by name, every field of an answer always there.
import { type DescField, type DescMessage, ScalarType } from "@bufbuild/protobuf";
import { type Constraint, constraints } from "./constraints.ts";
import type { Protos } from "./protos.ts";

export type Schema = Record<string, unknown>;

/** What is read: a field may be left out or null. What is printed: every field is there. */
type Direction = "request" | "answer";

const valueType = "google.protobuf.Value";

/** Collects the components that the operations refer to, by name. */
export class Schemas {
  readonly components: Record<string, Schema> = {};
  readonly #protos: Protos;
  readonly #answers: ReadonlySet<DescMessage>;

  constructor(protos: Protos) {
    this.#protos = protos;
    const methods = protos.services.flatMap((service) => service.methods);
    this.#answers = new Set(methods.flatMap((method) => [...reachable(method.output)]));
    for (const one of protos.enums) {
      this.components[one.name] = {
        type: "string",
        // Nothing is in the state that stands for none.
        enum: one.values.filter(({ number }) => number !== 0).map(({ name }) => name),
      };
    }
  }

  /** A reference to the schema of a message, which is made where it is not there yet. */
  reference(message: DescMessage, direction: Direction): Schema {
    const shared = direction === "request" && this.#answers.has(message);
    const name = shared ? `${message.name}Input` : message.name;
    if (this.components[name] === undefined) {
      this.components[name] = {};
      this.components[name] = this.#object(message, name, direction);
    }
    return { $ref: `#/components/schemas/${name}` };
  }

  #object(message: DescMessage, name: string, direction: Direction): Schema {
    const required: string[] = [];
    const properties: Record<string, Schema> = {};
    for (const field of message.fields) {
      const { required: demanded, ...more } = constraints[name]?.[field.name] ?? {};
      const isRequired = direction === "answer" ? isAlwaysPrinted(field) : demanded === true;
      if (isRequired) required.push(field.name);
      const mayBeNull = direction === "request" && !isRequired;
      properties[field.name] = this.#property(field, direction, more, mayBeNull);
    }
    const description = this.#protos.commentOf(message);
    return {
      type: "object",
      ...(description !== "" && { description }),
      ...(required.length > 0 && { required }),
      ...(message.fields.length > 0 && { properties }),
    };
  }

  #property(field: DescField, direction: Direction, more: Constraint, mayBeNull: boolean): Schema {
    const text = this.#protos.commentOf(field);
    const description = text === "" ? {} : { description: text };
    const type = this.#typeOf(field, direction);
    const schema = { ...type, ...more };
    if (!mayBeNull) return { ...description, ...schema };
    if ("$ref" in type) return { ...description, oneOf: [type, { type: "null" }] };
    const { anyOf } = schema as { anyOf?: Schema[] };
    // Apart from null, so that a generated client has one type of the names.
    if ("enum" in schema) return { ...description, oneOf: [schema, { type: "null" }] };
    return {
      ...description,
      ...schema,
      type: [schema["type"], "null"],
      ...(anyOf !== undefined && { anyOf: [...anyOf, { type: "null" }] }),
    };
  }

  #typeOf(field: DescField, direction: Direction): Schema {
    switch (field.fieldKind) {
      case "list":
        return { type: "array", items: this.#itemOf(field, direction) };
      case "map":
        return { type: "object", additionalProperties: { type: "string" } };
      case "enum":
        return { $ref: `#/components/schemas/${field.enum.name}` };
      case "message":
        return this.reference(field.message, direction);
      case "scalar":
        return scalar(field.scalar);
    }
  }

  #itemOf(field: DescField & { fieldKind: "list" }, direction: Direction): Schema {
    if (field.listKind === "scalar") return scalar(field.scalar);
    if (field.listKind === "enum") return { $ref: `#/components/schemas/${field.enum.name}` };
    return field.message.typeName === valueType ? {} : this.reference(field.message, direction);
  }
}

/** The message and all that its fields lead to. */
function reachable(message: DescMessage, found = new Set<DescMessage>()): Set<DescMessage> {
  if (found.has(message)) return found;
  found.add(message);
  for (const { message: next } of message.fields) if (next) reachable(next, found);
  return found;
}

/** A message is always set by the service; what the proto calls optional may be absent. */
const isAlwaysPrinted = (field: DescField): boolean => !field.proto.proto3Optional;

function scalar(type: ScalarType): Schema {
  switch (type) {
    case ScalarType.STRING:
      return { type: "string" };
    case ScalarType.BOOL:
      return { type: "boolean" };
    case ScalarType.UINT32:
      return { type: "integer", minimum: 0, maximum: 0xffff_ffff };
    case ScalarType.DOUBLE:
      return { type: "number" };
    default:
      // 64 bits would print as a string, which the contract rules out.
      throw new Error(`the public protos must not have a field of type ${ScalarType[type]}`);
  }
}
