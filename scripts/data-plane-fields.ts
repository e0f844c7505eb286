// Writes packages/protocol/src/data-plane-fields.ts, a part of `npm run gen`: which fields a JSON body of the data plane may have.
import { readFileSync, writeFileSync } from "node:fs";
import { parse } from "yaml";
import { dataPlaneFields } from "./data-plane-fields/fields.ts";

const at = (path: string): URL => new URL(`../${path}`, import.meta.url);
const document = parse(readFileSync(at("spec/dataplane.openapi.yaml"), "utf8")) as object;
writeFileSync(at("packages/protocol/src/data-plane-fields.ts"), dataPlaneFields(document));
