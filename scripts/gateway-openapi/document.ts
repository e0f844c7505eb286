// The OpenAPI document of the gateway, made of the public protos (spec/gateway.openapi.yaml).
import type { DescMethod, DescService } from "@bufbuild/protobuf";
import { defaults, errorCodes } from "@cloche/protocol";
import { stringify } from "yaml";
import type { Protos } from "./protos.ts";
import { type Schema, Schemas } from "./schemas.ts";

const heading = `# Made by \`npm run gen\` of spec/proto/cloche/public and scripts/gateway-openapi; change those.
`;

const description = `The control surface of the service: sandboxes, their checkpoints, usage and the team's API keys. Connect's unary
protocol over JSON: each call is a POST with a JSON object, and \`Authorization: Bearer <API key>\`. Connect, gRPC and gRPC-Web
clients of the same protos work too. Every path is served with \`svc.public.v1\` in place of \`cloche.public.v1\` as well.

JSON is snake_case; integers are JSON numbers; timestamps are RFC 3339 UTC with milliseconds. Unknown request fields are refused (400) unless the header x-cloche-unknown-fields: ignore is sent, null is as
good as left out, and an answer has all its fields. Every response carries \`x-request-id\`; a caller's own is kept.
`;

const tagDescriptions: Readonly<Record<string, string>> = {
  SandboxService: "Sandboxes and what belongs to them",
  ApiKeyService: "The team's API keys",
};

export function gatewayDocument(protos: Protos): string {
  const schemas = new Schemas(protos);
  const operations = protos.services.flatMap((service) =>
    service.methods.map((method) => [service, method] as const),
  );
  const paths = Object.fromEntries(
    operations.map(([service, method]) => [
      `/${service.typeName}/${method.name}`,
      { post: operation(protos, schemas, service, method) },
    ]),
  );
  const document = {
    openapi: "3.1.0",
    info: {
      title: "Cloche gateway",
      version: "1",
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
      description,
    },
    servers: [
      {
        url: "{base_url}",
        variables: { base_url: { default: `http://127.0.0.1:${defaults.gatewayPort}` } },
      },
    ],
    security: [{ apiKey: [] }],
    tags: protos.services.map(({ name }) => ({ name, description: tagDescriptions[name] ?? name })),
    paths,
    components: components(schemas),
  };
  return (
    heading + stringify(document, { lineWidth: 118, aliasDuplicateObjects: false, blockQuote: "literal" })
  );
}

function operation(protos: Protos, schemas: Schemas, service: DescService, method: DescMethod): Schema {
  const comment = protos.commentOf(method);
  const request = schemas.reference(method.input, "request");
  const { required } = schemas.components[method.input.name] as { required?: string[] };
  return {
    tags: [service.name],
    operationId: method.name.charAt(0).toLowerCase() + method.name.slice(1),
    summary: words(method.name),
    ...(comment !== "" && { description: comment }),
    ...(comment.startsWith("Added") && { "x-added": true }),
    requestBody: {
      // A call that needs no field needs no body.
      required: required !== undefined,
      content: { "application/json": { schema: request } },
    },
    responses: {
      "200": {
        description: "Done",
        headers: { "x-request-id": { $ref: "#/components/headers/RequestId" } },
        content: { "application/json": { schema: schemas.reference(method.output, "answer") } },
      },
      default: { $ref: "#/components/responses/Error" },
    },
  };
}

/** `IssueDataPlaneToken` as `Issue data plane token`. */
const words = (name: string): string =>
  name.charAt(0) +
  name
    .slice(1)
    .replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)
    .replaceAll(" api ", " API ");

const errorDescription = `400 invalid_argument or failed_precondition; 401 unauthenticated (with WWW-Authenticate: Bearer); 404 not_found;
405 for another method than POST (with Allow); 409 already_exists or aborted; 415 for another content type; 429 resource_exhausted
(a quota, a rate, or a body that is too large; with Retry-After where waiting helps); 499 canceled; 500 internal; 501 unimplemented;
503 unavailable; 504 deadline_exceeded.
`;

const components = (schemas: Schemas): Schema => ({
  securitySchemes: {
    apiKey: { type: "http", scheme: "bearer", description: "An API key of the team" },
  },
  headers: {
    RequestId: {
      description: "The caller's own, else a new one; it leads to the log line",
      schema: { type: "string", maxLength: 128 },
    },
  },
  responses: {
    Error: {
      description: errorDescription,
      headers: {
        "x-request-id": { $ref: "#/components/headers/RequestId" },
        allow: { description: "With 405", schema: { type: "string" } },
        "retry-after": { description: "Seconds", schema: { type: "integer", minimum: 0 } },
        "www-authenticate": { description: "On 401", schema: { type: "string", const: "Bearer" } },
      },
      content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
    },
  },
  schemas: {
    Error: {
      type: "object",
      required: ["code", "message"],
      properties: {
        code: { type: "string", enum: [...errorCodes] },
        message: {
          type: "string",
          description: "Names the field and the value and says what would be right",
        },
        details: { type: "array", items: {} },
      },
    },
    ...Object.fromEntries(Object.entries(schemas.components).toSorted(([a], [b]) => (a < b ? -1 : 1))),
  },
});
