// Writes spec/gateway.openapi.yaml, a part of `npm run gen`.
import { writeFileSync } from "node:fs";
import { gatewayDocument } from "./gateway-openapi/document.ts";
import { readProtos } from "./gateway-openapi/protos.ts";

writeFileSync(new URL("../spec/gateway.openapi.yaml", import.meta.url), gatewayDocument(readProtos()));
