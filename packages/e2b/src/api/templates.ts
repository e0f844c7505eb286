/** Templates: E2B builds them; Cloche has only `base` and snapshots. */
import { defaults } from "@cloche/protocol";
import type { Fields } from "../http.ts";
import { type ApiAnswer, type ApiCall, ok } from "./api-call.ts";
import { noTemplate } from "./create.ts";
import { envdVersion } from "./sandbox-view.ts";

/** `GET /templates`, `/v2/templates`. */
export async function listTemplates(): Promise<ApiAnswer> {
  return ok([base()]);
}

/** `GET /templates/aliases/{alias}`. */
export async function alias({ gateway, params }: ApiCall): Promise<ApiAnswer> {
  const wanted = params.alias ?? "";
  if (wanted === defaults.template) return ok({ templateID: wanted, public: true });
  const named = (await gateway.listCheckpoints()).find(({ id, name }) => name === wanted || id === wanted);
  if (named === undefined) throw noTemplate(wanted);
  return ok({ templateID: named.id, public: false });
}

function base(): Fields {
  const epoch = new Date(0).toISOString();
  return {
    templateID: defaults.template,
    buildID: defaults.template,
    cpuCount: defaults.cpus,
    memoryMB: defaults.memoryMb,
    diskSizeMB: defaults.diskMb,
    public: true,
    createdAt: epoch,
    updatedAt: epoch,
    createdBy: null,
    lastSpawnedAt: null,
    spawnCount: 0,
    buildCount: 1,
    envdVersion,
    aliases: [defaults.template],
    names: [defaults.template],
    buildStatus: "ready",
  };
}
