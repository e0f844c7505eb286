// Runs cases against a service. Owns the connections, the sandboxes it made for cases and the tokens of each; `close`
// deletes what is left. What a step meant and got is kept as a transcript, printed when the case fails.
import { setTimeout as sleep } from "node:timers/promises";
import type { Capability, Case, CaseFile, Step, Surface } from "./case-file.ts";
import { contractProblems } from "./contract-check.ts";
import { mismatches } from "./matchers.ts";
import { bodyOf, type Captured, fill, publicService, requestLine, statusOf } from "./step.ts";
import { type Target, Wire, type WireAnswer } from "./wire.ts";

export interface TestSandbox {
  id: string;
  domain: string;
  token: string;
}
/** As the gateway answers it. */
interface MadeSandbox {
  id: string;
  state: string;
  domain: string;
}
interface Exchange {
  answer: WireAnswer;
  json: unknown;
  problems: string[];
}

/** A case whose service answered otherwise than it must. */
export class CaseFailure extends Error {
  override readonly name = "CaseFailure";
}

const READY_MS = 60_000;
const POLL_MS = 100;

export class Session {
  readonly target: Target;
  readonly wire: Wire;
  readonly #tokens = new Map<string, string>();
  readonly #domains = new Map<string, string>();
  readonly #owned = new Set<string>();
  readonly #patience: number;
  #count = 0;

  constructor(target: Target) {
    this.target = target;
    this.wire = new Wire(target);
    this.#patience = target.patience ?? 1;
  }

  /** Why a case cannot run against this service; undefined when it can. */
  lacks(needs: readonly Capability[] = []): string | undefined {
    if (needs.includes("other_team") && this.target.otherTeamKey === undefined)
      return "no API key of a second team was given";
    if (needs.includes("containers") && this.target.containers === false)
      return "the service is said to run no containers";
    return undefined;
  }

  /** A RUNNING sandbox. Delete it with `discard`; `close` deletes what was not. */
  async createSandbox(fields: Record<string, unknown> = {}): Promise<TestSandbox> {
    const { json, answer } = await this.#callGateway("CreateSandbox", fields);
    const created = json as { sandbox?: MadeSandbox; data_plane_token?: string };
    if (answer.status !== 200 || !created.sandbox)
      throw new Error(`CreateSandbox answered ${answer.status}: ${answer.body.toString()}`);
    const { id } = created.sandbox;
    this.#owned.add(id);
    const { state, domain } = await this.#made(created.sandbox);
    if (state !== "SANDBOX_STATE_RUNNING") throw new Error(`sandbox ${id} is ${state}, not RUNNING`);
    const token = String(created.data_plane_token);
    this.#tokens.set(id, token);
    this.#domains.set(id, domain);
    return { id, domain, token };
  }

  /** What becomes of a sandbox that was answered while it is still being made: a service may do so after 10 s. */
  async #made(answered: MadeSandbox): Promise<MadeSandbox> {
    let seen = answered;
    const until = Date.now() + READY_MS * this.#patience;
    while (seen.state === "SANDBOX_STATE_CREATING" && Date.now() < until) {
      await sleep(POLL_MS);
      const { json } = await this.#callGateway("GetSandbox", { id: answered.id });
      seen = (json as { sandbox?: MadeSandbox }).sandbox ?? seen;
    }
    return seen;
  }

  /** Has `close` delete a sandbox that somebody else made. */
  adopt(id: string): void {
    this.#owned.add(id);
  }

  async discard(id: string): Promise<void> {
    this.#owned.delete(id);
    const key = this.#tokens.get(`key ${id}`);
    const { answer } = await this.#callGateway("DeleteSandbox", { id }, key);
    if (answer.status !== 200 && answer.status !== 404)
      throw new Error(`DeleteSandbox of ${id} answered ${answer.status}: ${answer.body.toString()}`);
  }

  async close(): Promise<void> {
    for (const id of this.#owned) await this.discard(id);
    this.wire.close();
  }

  /** Runs a case; throws CaseFailure with a transcript when an answer is not as it must be. */
  async run(file: CaseFile, one: Case, shared: TestSandbox | undefined): Promise<void> {
    const use = one.sandbox ?? file.sandbox ?? "shared";
    const own = use === "each" ? await this.createSandbox(one.create ?? file.create) : undefined;
    const sandbox = own ?? shared;
    this.#count += 1;
    const captured: Captured = {
      case: `c${Date.now().toString(36)}${this.#count}`,
      api_key: this.target.apiKey,
      key512: "k".repeat(512),
    };
    if (sandbox) {
      const baseDomain = sandbox.domain.slice(sandbox.id.length + 1);
      Object.assign(captured, { sandbox: sandbox.id, domain: sandbox.domain, base_domain: baseDomain });
      captured["token"] = sandbox.token;
    }
    const before = new Set(this.#owned);
    const transcript: string[] = [];
    try {
      const meanwhile: Promise<void>[] = [];
      for (const step of one.steps) {
        const run = this.#runStep(file.surface, step, captured, transcript);
        if (step.meanwhile !== true) await run;
        else {
          run.catch(() => undefined); // told at the end of the case
          meanwhile.push(run);
        }
      }
      await Promise.all(meanwhile);
    } finally {
      for (const id of this.#owned) if (!before.has(id) || id === own?.id) await this.discard(id);
    }
  }

  async #runStep(fileSurface: Surface, raw: Step, captured: Captured, transcript: string[]): Promise<void> {
    const { capture, ...unfilled } = raw;
    const step = fill(unfilled, captured) as Step;
    if (step.pause_ms !== undefined) await sleep(step.pause_ms);
    const surface = step.surface ?? (step.call.includes(" ") ? "dataplane" : fileSurface);
    const until = Date.now() + (step.until_ms ?? 0) * this.#patience;
    for (;;) {
      const attempts = Array.from({ length: step.copies ?? 1 }, () =>
        this.#exchange(surface, step, captured),
      );
      const exchanges = await Promise.all(attempts);
      const bad = exchanges.find(({ problems }) => problems.length > 0);
      const first = exchanges[0];
      if (bad === undefined && first !== undefined) {
        transcript.push(describe(step, first));
        if (makesSandbox(step)) for (const { json } of exchanges) await this.#awaitMade(json);
        for (const [name, place] of Object.entries(capture ?? {})) captured[name] = pick(first, place);
        return;
      }
      if (Date.now() >= until) {
        const got = bad ? describe(step, bad) : "";
        const wrong = (bad?.problems ?? []).map((problem) => `  - ${problem}`).join("\n");
        throw new CaseFailure(`${got}\n${wrong}\nbefore it:\n${transcript.join("\n") || "(the first step)"}`);
      }
      await sleep(POLL_MS);
    }
  }

  async #exchange(surface: Surface, step: Step, captured: Captured): Promise<Exchange> {
    const { method, path } = requestLine(step, surface);
    const body = bodyOf(step);
    const authorization = await this.#authorization(surface, step, captured);
    const contentType = step.json !== undefined ? { "content-type": "application/json" } : {};
    const headers = { ...contentType, ...authorization, ...step.headers };
    const request = { method, path, headers, body };
    const answer =
      surface === "gateway"
        ? await this.wire.gateway(request)
        : await this.wire.dataPlane(
            await this.#domainOf(step.on ?? String(captured["sandbox"]), captured),
            request,
          );
    const json = parseJson(answer.body);
    if (surface === "gateway") this.#adopt(json, step);
    const problems = [
      ...contractProblems(surface, method, path, answer),
      ...expectationProblems(surface, step, answer, json),
    ];
    return { answer, json, problems };
  }

  /** The next steps find it made, and what they captured of it is what it then was. */
  async #awaitMade(json: unknown): Promise<void> {
    const answer = json as { sandbox?: MadeSandbox; sandboxes?: MadeSandbox[] } | undefined;
    for (const one of [answer?.sandbox, ...(answer?.sandboxes ?? [])]) {
      if (one?.state !== "SANDBOX_STATE_CREATING") continue;
      Object.assign(one, await this.#made(one));
      if (one.domain !== "") this.#domains.set(one.id, one.domain);
    }
  }

  /** Sandboxes that a case makes are ours to delete. */
  #adopt(json: unknown, step: Step): void {
    if (!makesSandbox(step)) return;
    const made = json as
      | {
          sandbox?: { id?: string; domain?: string };
          data_plane_token?: string;
          sandboxes?: { id?: string; domain?: string }[];
          data_plane_tokens?: string[];
        }
      | undefined;
    const { sandboxes = [made?.sandbox], data_plane_tokens = [made?.data_plane_token] } = made ?? {};
    for (const [index, sandbox] of sandboxes.entries()) {
      const id = sandbox?.id;
      if (id === undefined) continue;
      const token = data_plane_tokens[index];
      this.#owned.add(id);
      if (sandbox?.domain) this.#domains.set(id, sandbox.domain);
      if (token) this.#tokens.set(id, token);
      if (step.auth === "other_team") this.#tokens.set(`key ${id}`, this.target.otherTeamKey ?? "");
    }
  }

  async #authorization(surface: Surface, step: Step, captured: Captured): Promise<Record<string, string>> {
    const bearer = (token: string | undefined): Record<string, string> => ({
      authorization: `Bearer ${token ?? ""}`,
    });
    const [kind = "", ...rest] = (step.auth ?? (surface === "gateway" ? "api_key" : "token")).split(" ");
    const argument = rest.join(" ");
    switch (kind) {
      case "none":
        return {};
      case "basic":
        return { authorization: `Basic ${Buffer.from(`key:${this.target.apiKey}`).toString("base64")}` };
      case "bearer":
        return bearer(argument);
      case "api_key":
        return bearer(this.target.apiKey);
      case "other_team":
        return bearer(this.target.otherTeamKey);
      case "token_of":
        return bearer(await this.#tokenOf(argument));
      default:
        return bearer(await this.#tokenOf(step.on ?? String(captured["sandbox"])));
    }
  }

  async #tokenOf(id: string): Promise<string> {
    const known = this.#tokens.get(id);
    if (known !== undefined) return known;
    const { json } = await this.#callGateway("IssueDataPlaneToken", { sandbox_id: id });
    const token = String((json as { jwt?: string }).jwt);
    this.#tokens.set(id, token);
    return token;
  }

  async #domainOf(id: string, captured: Captured): Promise<string> {
    if (id.includes(".")) return id;
    if (id === captured["sandbox"]) return String(captured["domain"]);
    const known = this.#domains.get(id);
    if (known) return known;
    const { json } = await this.#callGateway("GetSandbox", { id });
    const domain = (json as { sandbox?: { domain?: string } }).sandbox?.domain ?? "";
    if (domain !== "") this.#domains.set(id, domain);
    return domain;
  }

  async #callGateway(
    name: string,
    fields: unknown,
    key?: string,
  ): Promise<{ answer: WireAnswer; json: unknown }> {
    const answer = await this.wire.gateway({
      method: "POST",
      path: `/${publicService}/${name}`,
      headers: { "content-type": "application/json", authorization: `Bearer ${key ?? this.target.apiKey}` },
      body: Buffer.from(JSON.stringify(fields)),
    });
    return { answer, json: parseJson(answer.body) };
  }
}

const makesSandbox = ({ call }: Step): boolean => /^(Create|Fork)Sandbox$/.test(call);

function expectationProblems(surface: Surface, step: Step, answer: WireAnswer, json: unknown): string[] {
  const { expect } = step;
  const problems: string[] = [];
  const status = expect.status ?? (expect.error === undefined ? undefined : statusOf(surface, expect.error));
  if (status !== undefined && !(Array.isArray(status) ? status : [status]).includes(answer.status))
    problems.push(`status: expected ${String(status)}, got ${answer.status}`);
  if (expect.error !== undefined) problems.push(...mismatches({ code: expect.error }, json));
  for (const part of expect.says === undefined ? [] : [expect.says].flat())
    problems.push(...mismatches({ message: { $includes: part } }, json));
  for (const [name, wanted] of Object.entries(expect.headers ?? {}))
    problems.push(...mismatches(wanted, answer.headers[name], `headers.${name}`));
  if ("json" in expect) problems.push(...mismatches(expect.json, json));
  if ("text" in expect) problems.push(...mismatches(expect.text, answer.body.toString("utf8"), "text"));
  if (expect.size !== undefined && answer.body.length !== expect.size)
    problems.push(`size: expected ${expect.size} bytes, got ${answer.body.length}`);
  return problems;
}

function pick({ answer, json }: Exchange, place: string): unknown {
  const [where = "", parameter] = place.split("?");
  const [from, ...names] = where.split(".");
  if (from === "text") return answer.body.toString("utf8");
  if (from === "headers") return answer.headers[names.join(".")];
  const found = names.reduce<unknown>(
    (at, name) => (at as Record<string, unknown> | undefined)?.[name],
    json,
  );
  const value = parameter === undefined ? found : new URL(String(found)).searchParams.get(parameter);
  if (value === undefined || value === null) throw new CaseFailure(`nothing to capture at ${place}`);
  return value;
}

function parseJson(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString("utf8"));
  } catch {
    return undefined;
  }
}

function describe(step: Step, { answer }: Exchange): string {
  const cut = (text: string): string => (text.length > 1_000 ? `${text.slice(0, 1_000)}…` : text);
  const asked = step.json === undefined ? "" : ` ${cut(JSON.stringify(step.json))}`;
  const query = step.query === undefined ? "" : ` ${JSON.stringify(step.query)}`;
  return `${step.call}${query}${asked}\n  -> ${answer.status} ${cut(answer.body.toString("utf8"))}`;
}
