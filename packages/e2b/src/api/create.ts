import { createHash } from "node:crypto";
import { defaults, isCheckpointId, limits } from "@cloche/protocol";
import { ClocheApiError, type CreateSandboxRequest, type Gateway, type SandboxInfo } from "@cloche/sdk";
import { badField, E2bError, notOffered } from "../e2b-error.ts";
import { type Fields, headerOf } from "../http.ts";
import { type ApiAnswer, type ApiCall, created, flag, textField, texts, wholeNumber } from "./api-call.ts";
import { egressOf, isPublicTraffic, networkField } from "./network.ts";
import { access } from "./sandbox-view.ts";
import { awaitRunning } from "./waiting.ts";

/** Default timeout of E2B's API, in seconds; its clients always send one. */
const timeoutDefault = 15;
const idempotencyKeyLength = 128;

/** `POST /v2/sandboxes`, `/sandboxes`. */
export async function create(call: ApiCall): Promise<ApiAnswer> {
  const { gateway, sandboxes, apiKey, body } = call;
  const request = await readCreate(call);
  const answer = await gateway.createSandbox(request).catch((error: unknown) => {
    if (isUnknownTemplate(error)) throw noTemplate(String(body.templateID), error);
    throw error;
  });
  const info = await runningOrGone(call, answer.sandbox);
  return created(access(sandboxes, apiKey, info));
}

async function runningOrGone(call: ApiCall, info: SandboxInfo): Promise<SandboxInfo> {
  try {
    return await awaitRunning(call, info);
  } catch (error) {
    await call.gateway.deleteSandbox(info.id).catch(() => undefined);
    throw error;
  }
}

async function readCreate({ gateway, body, request }: ApiCall): Promise<CreateSandboxRequest> {
  const templateID = textField(body, "templateID") ?? "";
  if (templateID === "")
    throw badField("templateID", body.templateID, `a template, such as "${defaults.template}"`);
  refuseUnoffered(body);
  const network = networkField(body);
  const seconds = wholeNumber(body, "timeout", { max: limits.timeoutSecondsMax }) ?? timeoutDefault;
  const resumes = body.autoResume as Fields | undefined | null;
  const idempotencyKey = headerOf(request, "idempotency-key");
  return {
    ...(await origin(gateway, templateID)),
    metadata: texts(body, "metadata") ?? {},
    env: texts(body, "envVars") ?? {},
    // 0 means never in Cloche and at once in E2B.
    timeout_seconds: Math.max(1, seconds),
    on_timeout: flag(body, "autoPause") === true ? "suspend" : "delete",
    auto_resume: resumes === undefined || resumes === null ? false : flag(resumes, "enabled") === true,
    public_ports: isPublicTraffic(network) ? ["*"] : [],
    egress: egressOf(network, flag(body, "allow_internet_access")),
    ...(idempotencyKey !== undefined && { idempotency_key: shortKey(idempotencyKey) }),
  };
}

/** Shortens an idempotency key: E2B's may be longer than Cloche's. */
const shortKey = (key: string): string =>
  key.length <= idempotencyKeyLength ? key : createHash("sha256").update(key).digest("hex");

function refuseUnoffered(body: Fields): void {
  const { volumeMounts, iam } = body;
  if (Array.isArray(volumeMounts) && volumeMounts.length > 0) throw notOffered("volumeMounts");
  const tokens = ((iam ?? {}) as Fields).tokens;
  if (typeof tokens === "object" && tokens !== null && Object.keys(tokens).length > 0)
    throw notOffered("iam");
  if (flag(body, "autoPauseMemory") === false) throw notOffered("autoPauseMemory: false");
}

/** A template, or a snapshot by its id or name. */
async function origin(
  gateway: Gateway,
  templateID: string,
): Promise<Pick<CreateSandboxRequest, "template" | "checkpoint_id">> {
  if (templateID === defaults.template) return {};
  if (isCheckpointId(templateID)) return { checkpoint_id: templateID };
  const named = (await gateway.listCheckpoints()).find(({ name }) => name === templateID);
  return named === undefined ? { template: templateID } : { checkpoint_id: named.id };
}

const isUnknownTemplate = (error: unknown): boolean =>
  error instanceof ClocheApiError &&
  ((error.code === "invalid_argument" && error.message.startsWith("template ")) ||
    (error.code === "not_found" && error.message.startsWith("checkpoint_id")));

export const noTemplate = (templateID: string, cause?: unknown): E2bError =>
  new E2bError(
    "not_found",
    `template '${templateID.slice(0, 100)}' not found; there is "${defaults.template}", and snapshots by id or name`,
    { cause },
  );
