// What every answer must keep, whatever the case asks: the request id, the one error shape, no innards in messages, and the
// schema that the OpenAPI document of its surface gives the route.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { ErrorObject, ValidateFunction } from "ajv";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { parse } from "yaml";
import type { Surface } from "./case-file.ts";
import type { WireAnswer } from "./wire.ts";

interface OpenApi {
  paths: Record<string, Record<string, { responses?: Record<string, unknown> }>>;
}

const documentOf = (surface: Surface): OpenApi => {
  const path = fileURLToPath(new URL(`../../spec/${surface}.openapi.yaml`, import.meta.url));
  return parse(readFileSync(path, "utf8")) as OpenApi;
};
const documents: Record<Surface, OpenApi> = {
  dataplane: documentOf("dataplane"),
  gateway: documentOf("gateway"),
};
const ajv = new Ajv2020({ strict: false, validateSchema: false, allErrors: true });
addFormats.default(ajv);
// What no pattern can say.
for (const format of ["egress-domain", "egress-cidr"]) ajv.addFormat(format, true);
for (const [surface, document] of Object.entries(documents)) ajv.addSchema(document, surface);
const compiled = new Map<string, ValidateFunction>();

/** The OpenAPI path of a request path, for example `/v1/store/{key}`; undefined when no route is like it. */
export function openApiPath(path: string, surface: Surface = "dataplane"): string | undefined {
  const document = documents[surface];
  const bare = (path.split("?")[0] ?? "").replace(/^\/svc\.public\.v1\./, "/cloche.public.v1.");
  if (document.paths[bare]) return bare;
  if (surface === "gateway") return undefined;
  const segments = bare.split("/");
  return Object.keys(document.paths).find((template) => {
    if (template === "/v1/store/{key}")
      return bare.startsWith("/v1/store/") && bare.length > "/v1/store/".length;
    const wanted = template.split("/");
    return (
      wanted.length === segments.length &&
      wanted.every((one, index) => (one.startsWith("{") ? segments[index] !== "" : one === segments[index]))
    );
  });
}

/** What is wrong with an answer regardless of the case, one line each. */
export function contractProblems(
  surface: Surface,
  method: string,
  path: string,
  answer: WireAnswer,
): string[] {
  const problems: string[] = [];
  if (!answer.headers["x-request-id"]) problems.push("the answer has no x-request-id");
  if (answer.status >= 500 && answer.status !== 501 && answer.status !== 503 && answer.status !== 507)
    problems.push(`status ${answer.status}: the service failed`);
  const text = answer.body.toString("utf8");
  if (answer.status >= 400 && method !== "HEAD") problems.push(...errorShapeProblems(answer, text));
  if (surface === "dataplane" && answer.status === 401 && answer.headers["www-authenticate"] !== "Bearer")
    problems.push("a 401 without WWW-Authenticate: Bearer");
  // An error of HEAD has the head of GET's and no body.
  if (method !== "HEAD" || answer.status < 400)
    problems.push(...schemaProblems(surface, method, path, answer, text));
  return problems;
}

function errorShapeProblems(answer: WireAnswer, text: string): string[] {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return [`an error without a JSON body: ${answer.status} ${text.slice(0, 200)}`];
  }
  const problems: string[] = [];
  const { code, message } = (body ?? {}) as { code?: unknown; message?: unknown };
  if (typeof code !== "string" || !/^[a-z_]+$/.test(code)) problems.push(`an error without a code: ${text}`);
  if (typeof message !== "string" || message === "") problems.push(`an error without a message: ${text}`);
  if (!String(answer.headers["content-type"]).startsWith("application/json"))
    problems.push(`an error as ${String(answer.headers["content-type"])}`);
  if (/\bat .+:\d+:\d+|node_modules|node:internal|\.ts:\d+|ECONN|ENOENT|EACCES/.test(text))
    problems.push(`innards in a message: ${text}`);
  return problems;
}

function schemaProblems(
  surface: Surface,
  method: string,
  path: string,
  answer: WireAnswer,
  text: string,
): string[] {
  const document = documents[surface];
  const template = openApiPath(path, surface);
  const operation = template === undefined ? undefined : document.paths[template]?.[method.toLowerCase()];
  if (template === undefined || operation === undefined) return [];
  if (!String(answer.headers["content-type"]).startsWith("application/json")) return [];
  // A file that is read may hold anything, JSON too.
  if (template === "/v1/files" && method === "GET" && answer.status < 400) return [];
  const status = String(answer.status) in (operation.responses ?? {}) ? String(answer.status) : "default";
  const validate = validatorOf(surface, template, method.toLowerCase(), status);
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return [`application/json that is no JSON: ${text.slice(0, 200)}`];
  }
  if (validate(body)) return [];
  const errors = (validate.errors ?? []) as ErrorObject[];
  return errors.map(
    (error) => `${method} ${template} ${status}: body${error.instancePath} ${error.message ?? ""}`,
  );
}

function validatorOf(surface: Surface, template: string, method: string, status: string): ValidateFunction {
  const key = `${method} ${template} ${status}`;
  const known = compiled.get(key);
  if (known) return known;
  const response = (documents[surface].paths[template]?.[method]?.responses ?? {})[status] as {
    $ref?: string;
  };
  const escape = (part: string): string =>
    encodeURIComponent(part.replaceAll("~", "~0").replaceAll("/", "~1"));
  const pointer = response.$ref
    ? response.$ref.slice(1)
    : `/paths/${escape(template)}/${method}/responses/${status}`;
  const validate = ajv.compile({
    $ref: `${surface}#${pointer}/content/${escape("application/json")}/schema`,
  });
  compiled.set(key, validate);
  return validate;
}
