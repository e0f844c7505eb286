// spec/dataplane.openapi.yaml is a valid OpenAPI 3.1 document and describes exactly the routes that the service has.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { dataPlaneRoutes, errorCodes, limits } from "@cloche/protocol";
import { Validator } from "@seriousme/openapi-schema-validator";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { repositoryRoot } from "./source-tree.ts";

interface Operation {
  operationId?: string;
  responses?: Record<string, unknown>;
}
interface Document {
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Record<string, unknown>> };
}

const methods = new Set(["get", "post", "put", "delete", "patch", "head", "options"]);
const file = join(repositoryRoot, "spec/dataplane.openapi.yaml");
const document = parse(readFileSync(file, "utf8")) as Document;

/** `GET /v1/services/{name}` for each operation. */
const operations = Object.entries(document.paths).flatMap(([path, item]) =>
  Object.entries(item)
    .filter(([method]) => methods.has(method))
    .map(([method, operation]) => ({ route: `${method.toUpperCase()} ${path}`, operation })),
);

describe("the OpenAPI document of the data plane", () => {
  test("is valid OpenAPI 3.1", async () => {
    const validator = new Validator();
    const result = await validator.validate(file);
    expect(result.errors ?? []).toEqual([]);
    expect(result.valid).toBe(true);
    expect(validator.version).toBe("3.1");
    expect((await new Validator().validate({ openapi: "3.1.0", paths: {} })).valid).toBe(false);
  });

  test("describes exactly the routes of the data plane", () => {
    const routes = dataPlaneRoutes.map(
      ({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, "{$1}").replace("*", "{key}")}`,
    );
    expect(operations.map(({ route }) => route).sort()).toEqual(routes.sort());
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

  test("resolves every reference within itself", () => {
    const references = [...readFileSync(file, "utf8").matchAll(/\$ref: "#\/([^"]+)"/g)].map(
      (match) => match[1] ?? "",
    );
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

  test("agrees with the protocol on error codes and limits", () => {
    const error = document.components.schemas["Error"] as { properties: { code: { enum: string[] } } };
    expect(error.properties.code.enum.toSorted()).toEqual([...errorCodes].sort());
    const text = readFileSync(file, "utf8");
    for (const limit of [
      limits.fileWriteBytes,
      limits.pathBytes,
      limits.listEntries,
      limits.storeBatchOperations,
    ])
      expect(text).toContain(String(limit));
  });
});
