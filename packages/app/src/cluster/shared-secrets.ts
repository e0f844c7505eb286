/** Secrets that the gateways of a cluster share in the database, sealed under the operator's secret. */
import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import type { Database } from "@cloche/gateway";
import { ClocheError, newInstallationId } from "@cloche/protocol";
import { seal, unseal } from "@cloche/trust";

const secretBytesMin = 32;

/** The operator's secret. Throws `failed_precondition` if the file is missing or too short. */
export async function readSecret(file: string): Promise<Uint8Array> {
  const problem = (why: string, cause?: unknown): ClocheError =>
    new ClocheError(
      "failed_precondition",
      `CLOCHE_CLUSTER_SECRET_FILE: ${file} ${why}; make it once with: head -c 32 /dev/urandom | base64 > ${file}, and give the same file to all gateways`,
      { cause },
    );
  const text = await readFile(file).catch((cause: unknown) => {
    throw problem("cannot be read", cause);
  });
  // A line end added by an editor must not change the secret.
  const secret = Buffer.from(text.toString("latin1").trimEnd(), "latin1");
  if (secret.length < secretBytesMin) throw problem(`has fewer than ${secretBytesMin} bytes`);
  return secret;
}

export class SharedSecrets {
  readonly secret: Uint8Array;
  readonly #kept: Database["secrets"];

  constructor(kept: Database["secrets"], secret: Uint8Array) {
    this.#kept = kept;
    this.secret = secret;
  }

  /** Stores `value` unless the name has one already; answers the stored value. */
  async keep(name: string, value: string): Promise<string> {
    const sealed = await this.#kept.keep(name, seal(this.secret, name, value));
    return unseal(this.secret, name, sealed);
  }

  /** Unsealed, by name. */
  async list(prefix: string): Promise<{ name: string; value: string }[]> {
    const found = await this.#kept.list(prefix);
    return found.map(({ name, value }) => ({ name, value: unseal(this.secret, name, value) }));
  }

  /** False if the name has a value already. */
  add(name: string, value: string): Promise<boolean> {
    return this.#kept.add(name, seal(this.secret, name, value));
  }

  /** Replaces the value by `next` if `isOld` says so. If several gateways do this at once, one wins, and all answer its value. */
  async renew(
    name: string,
    isOld: (value: string) => Promise<boolean>,
    next: () => Promise<string>,
  ): Promise<string> {
    for (;;) {
      const [found] = (await this.#kept.list(name)).filter((one) => one.name === name);
      if (found === undefined) {
        await this.#kept.keep(name, seal(this.secret, name, await next()));
        continue;
      }
      const value = unseal(this.secret, name, found.value);
      if (!(await isOld(value))) return value;
      await this.#kept.replace(found, seal(this.secret, name, await next()));
    }
  }

  remove(name: string): Promise<void> {
    return this.#kept.remove(name);
  }

  /** The id of the installation, which all its gateways share. */
  installation(): Promise<string> {
    return this.keep("installation", newInstallationId(randomBytes));
  }
}
