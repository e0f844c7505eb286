// Both OpenAPI documents are valid, describe exactly what the service has, and promise the limits that it keeps.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { dataPlaneRoutes, displayNamePattern, errorCodes, limits } from "@cloche/protocol";
import { Validator } from "@seriousme/openapi-schema-validator";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { constraints } from "../../scripts/gateway-openapi/constraints.ts";
import { gatewayDocument } from "../../scripts/gateway-openapi/document.ts";
import { readProtos } from "../../scripts/gateway-openapi/protos.ts";
import { gatewayMethods } from "../conformance/surface-map.ts";
import { repositoryRoot } from "./source-tree.ts";

interface Media {
  schema: { $ref?: string };
}
interface Body {
  content?: Record<string, Media>;
}
interface Operation {
  operationId?: string;
  requestBody?: Body;
  responses?: Record<string, Body>;
}
interface Schema {
  required?: string[];
  properties?: Record<string, object>;
  enum?: string[];
  pattern?: string;
  maxLength?: number;
}
interface Document {
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema> };
}

const methods = new Set(["get", "post", "put", "delete", "patch", "head", "options"]);
const documents = ["dataplane", "gateway"].map((name) => {
  const file = join(repositoryRoot, `spec/${name}.openapi.yaml`);
  const text = readFileSync(file, "utf8");
  const document = parse(text) as Document;
  /** `GET /v1/services/{name}` for each operation. */
  const operations = Object.entries(document.paths).flatMap(([path, item]) =>
    Object.entries(item)
      .filter(([method]) => methods.has(method))
      .map(([method, operation]) => ({ route: `${method.toUpperCase()} ${path}`, operation })),
  );
  return { name, file, text, document, operations };
});
const [dataPlane, gateway] = documents as [(typeof documents)[0], (typeof documents)[0]];

const jsonOf = (body: Body | undefined): Media | undefined => body?.content?.["application/json"];

describe.each(documents)("the OpenAPI document of the $name", ({ file, text, document, operations }) => {
  test("is valid OpenAPI 3.1", async () => {
    const validator = new Validator();
    const result = await validator.validate(file);
    expect(result.errors ?? []).toEqual([]);
    expect(result.valid).toBe(true);
    expect(validator.version).toBe("3.1");
    expect((await new Validator().validate({ openapi: "3.1.0", paths: {} })).valid).toBe(false);
  });

  test("names every operation once and says how each fails", () => {
    const ids = operations.map(({ operation }) => operation.operationId);
    expect(new Set(ids).size).toBe(operations.length);
    for (const { route, operation } of operations) {
      expect(operation.operationId, route).toMatch(/^[a-z][A-Za-z]+$/);
      expect(Object.keys(operation.responses ?? {}), route).toContain("default");
      const good = Object.keys(operation.responses ?? {}).filter((status) => /^(101|20[01])$/.test(status));
      expect(good, route).toHaveLength(1);
    }
  });

  test("gives every JSON body a name, which a generated client calls it by", () => {
    const bodies = operations.flatMap(({ route, operation }) =>
      [operation.requestBody, ...Object.values(operation.responses ?? {})]
        .map(jsonOf)
        .flatMap((media) => (media === undefined ? [] : [[route, media.schema.$ref]])),
    );
    expect(bodies.length).toBeGreaterThan(30);
    expect(bodies.filter(([, name]) => name === undefined)).toEqual([]);
  });

  test("takes null for every field of a request that may be left out, as the service does", () => {
    const ajv = new Ajv2020({ strict: false, validateSchema: false });
    addFormats.default(ajv);
    for (const format of ["egress-domain", "egress-cidr"]) ajv.addFormat(format, true);
    ajv.addSchema(document as object, "openapi");
    const requests = operations.flatMap(({ operation }) => jsonOf(operation.requestBody)?.schema.$ref ?? []);
    const refusing = [...new Set(requests)].flatMap((reference) => {
      const name = reference.split("/").at(-1) ?? "";
      const { properties = {}, required = [] } = document.components.schemas[name] ?? {};
      return Object.keys(properties)
        .filter((field) => !required.includes(field))
        .filter((field) => !ajv.validate(`openapi${reference}/properties/${field}`, null))
        .map((field) => `${name}.${field}`);
    });
    expect(refusing).toEqual([]);
  });

  // openapi-typescript takes such a field for one that is always there.
  test("says the defaults of requests in words", () => {
    const requests = operations.flatMap(({ operation }) => jsonOf(operation.requestBody)?.schema.$ref ?? []);
    const fields = requests.flatMap((reference) => {
      const schema = document.components.schemas[reference.split("/").at(-1) ?? ""];
      return Object.entries(schema?.properties ?? {});
    });
    expect(fields.length).toBeGreaterThan(30);
    expect(fields.filter(([, schema]) => "default" in schema)).toEqual([]);
  });

  test("resolves every reference within itself", () => {
    const references = [...text.matchAll(/\$ref: "#\/([^"]+)"/g)].map((match) => match[1] ?? "");
    expect(references.length).toBeGreaterThan(50);
    const dangling = references.filter(
      (reference) =>
        reference
          .split("/")
          .reduce<unknown>((at, name) => (at as Record<string, unknown> | undefined)?.[name], document) ===
        undefined,
    );
    expect(dangling).toEqual([]);
  });

  test("agrees with the protocol on error codes", () => {
    const error = document.components.schemas["Error"] as { properties: { code: { enum: string[] } } };
    expect(error.properties.code.enum.toSorted()).toEqual([...errorCodes].sort());
  });
});

describe("the data plane", () => {
  test("is described route by route", () => {
    const routes = dataPlaneRoutes.map(
      ({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, "{$1}").replace("*", "{key}")}`,
    );
    expect(dataPlane.operations.map(({ route }) => route).sort()).toEqual(routes.sort());
  });

  test("is described with the protocol's limits", () => {
    const { CheckpointRequest, Ttl } = dataPlane.document.components.schemas;
    const name = CheckpointRequest?.properties?.["name"] as Schema;
    expect(name.pattern).toBe(displayNamePattern);
    expect(name.maxLength).toBe(limits.checkpointNameLength);
    expect(Ttl).toMatchObject({ minimum: 1, maximum: limits.storeTtlSeconds });
    for (const limit of [
      limits.fileWriteBytes,
      limits.pathBytes,
      limits.listEntries,
      limits.storeBatchOperations,
      limits.execArgumentBytes.toLocaleString("en"),
    ])
      expect(dataPlane.text).toContain(String(limit));
  });
});

describe("the gateway", () => {
  test("is described method by method", () => {
    expect(gateway.operations.map(({ route }) => route)).toEqual(
      gatewayMethods.map(({ path }) => `POST ${path}`),
    );
  });

  test("is described by what its protos say now (npm run gen)", () => {
    expect(gateway.text).toBe(gatewayDocument(readProtos()));
  });

  test("is described with constraints of fields that there are", () => {
    const stray = Object.entries(constraints).flatMap(([name, fields]) => {
      const { properties = {} } = gateway.document.components.schemas[name] ?? {};
      return Object.keys(fields)
        .filter((field) => !(field in properties))
        .map((field) => `${name}.${field}`);
    });
    expect(stray).toEqual([]);
  });
});
