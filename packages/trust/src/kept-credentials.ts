/**
 * The certificate of a running part of a cluster: renewed at half of its life, for the same key, without a restart.
 *
 *   valid ──half of its life──▶ renewing ──certificate──▶ valid (listeners are called)
 *                                  └── no gateway, or refused: again after a minute, even after the certificate has expired
 */
import { X509Certificate } from "node:crypto";
import type { Clock, Log } from "@cloche/base";
import { type Credentials, requestCertificate } from "./authority.ts";
import { type Identity, identityIn } from "./identity.ts";

const retryMs = 60_000;
/** Timers cannot wait for more than 24 days; looking once a day costs nothing. */
const checkEveryMaxMs = 86_400_000;

export interface KeptCredentialsNeeds {
  first: Credentials;
  /** Returns the new certificate (PEM) for a request (PKCS#10, PEM). */
  renew(request: string): Promise<string>;
  /** Stores the credentials for the next start; resolves when they are durable. Default: each start gets new ones. */
  save?: (renewed: Credentials) => Promise<void>;
  clock: Clock;
  log: Log;
}

export class KeptCredentials {
  readonly #needs: KeptCredentialsNeeds;
  readonly #stop = new AbortController();
  readonly #listeners: ((renewed: Credentials) => void)[] = [];
  #current: Credentials;
  #running: Promise<void> | undefined;

  constructor(needs: KeptCredentialsNeeds) {
    this.#needs = needs;
    this.#current = needs.first;
  }

  get current(): Credentials {
    return this.#current;
  }

  /** Calls `listener` at each renewal, so that servers take the new certificate. */
  onRenewed(listener: (renewed: Credentials) => void): void {
    this.#listeners.push(listener);
  }

  start(): void {
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the process ends"));
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#needs;
    const { signal } = this.#stop;
    let afterMs = 0;
    while (!signal.aborted) {
      const { fromMs, untilMs } = lifeOf(this.#current.cert);
      const dueInMs = Math.max(afterMs, (fromMs + untilMs) / 2 - clock.nowMs());
      await clock.sleep(Math.min(dueInMs, checkEveryMaxMs), signal).catch(() => undefined);
      if (signal.aborted || dueInMs > checkEveryMaxMs) continue;
      afterMs = retryMs;
      try {
        await this.#renew();
        log.info({ until: new Date(lifeOf(this.#current.cert).untilMs) }, "the certificate was renewed");
      } catch (error) {
        if (!signal.aborted) log.warn({ err: error, until_ms: untilMs }, "the certificate was not renewed");
      }
    }
  }

  async #renew(): Promise<void> {
    const { ca, key } = this.#current;
    const { request } = await requestCertificate(key);
    const renewed = { ca, key, cert: await this.#needs.renew(request) };
    await this.#needs.save?.(renewed);
    this.#current = renewed;
    for (const listener of this.#listeners) listener(renewed);
  }
}

/** The validity of a certificate (PEM), Unix milliseconds. */
export function lifeOf(certificate: string): { fromMs: number; untilMs: number } {
  const { validFrom, validTo } = new X509Certificate(certificate);
  return { fromMs: Date.parse(validFrom), untilMs: Date.parse(validTo) };
}

/** The identity in a certificate (PEM); undefined: it is not a cluster's certificate. */
export const identityOfCertificate = (certificate: string): Identity | undefined =>
  identityIn(new X509Certificate(certificate).subjectAltName);
