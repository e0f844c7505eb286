/** The fields of JSON bodies in an OpenAPI document, as a TypeScript file. */

interface Schema {
  $ref?: string;
  type?: string | string[];
  properties?: Record<string, Schema>;
  additionalProperties?: unknown;
  allOf?: Schema[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  items?: Schema;
}
/** A field's own fields; `true`: any value. */
export type Fields = { [name: string]: Fields | true };

interface Operation {
  requestBody?: { content?: Record<string, { schema?: Schema }> };
}

export function dataPlaneFields(document: object): string {
  const { paths, components } = document as {
    paths: Record<string, Record<string, Operation>>;
    components: { schemas: Record<string, Schema> };
  };
  const resolve = (schema: Schema): Schema =>
    schema.$ref === undefined ? schema : (components.schemas[schema.$ref.split("/").at(-1) ?? ""] ?? {});
  const fieldsOf = (given: Schema): Fields | true => {
    const schema = resolve(given);
    const parts = [
      schema,
      ...[schema.allOf, schema.anyOf, schema.oneOf].flatMap((all) => (all ?? []).map(resolve)),
    ];
    const properties = Object.assign({}, ...parts.map((part) => part.properties ?? {})) as Record<
      string,
      Schema
    >;
    const isOpen = parts.some(
      (part) => part.additionalProperties !== undefined && part.additionalProperties !== false,
    );
    if (isOpen || Object.keys(properties).length === 0) return true;
    return Object.fromEntries(Object.entries(properties).map(([name, one]) => [name, fieldsOf(one)]));
  };
  const table: Record<string, Fields> = {};
  for (const [path, operations] of Object.entries(paths))
    for (const [method, { requestBody }] of Object.entries(operations)) {
      const schema = requestBody?.content?.["application/json"]?.schema;
      if (schema === undefined) continue;
      const fields = fieldsOf(schema);
      if (fields !== true) table[`${method.toUpperCase()} ${path.replaceAll(/\{(\w+)\}/g, ":$1")}`] = fields;
    }
  return `// Written by scripts/data-plane-fields.ts from spec/dataplane.openapi.yaml; run npm run gen.
/** A field's own fields; \`true\`: any value. */
export interface KnownFields {
  readonly [name: string]: KnownFields | true;
}

export const dataPlaneFields: Readonly<Record<string, KnownFields>> = ${JSON.stringify(table, null, 2)};
`;
}
