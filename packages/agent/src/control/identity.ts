/**
 * Which sandbox this machine is. An agent starts as nobody's; Assign makes it a given sandbox, and a clone of a running
 * sandbox into another one. Held in memory only, so a memory snapshot carries it until the next Assign replaces it.
 */
import { ClocheError } from "@cloche/protocol";
import type { KeySet } from "../auth/token-verifier.ts";
import { TokenVerifier } from "../auth/token-verifier.ts";
import type { Log } from "../log.ts";
import type { Guest } from "../spawner/index.ts";

const filesDeadlineMs = 10_000;

export class Identity {
  #sandboxId = "";
  #verifier: TokenVerifier | undefined;
  #env: Readonly<Record<string, string>> = {};
  #dnsServers: readonly string[] = [];
  #hostname = "";
  #beingWritten: Promise<void> | undefined;

  /** Empty until assigned. */
  get sandboxId(): string {
    return this.#sandboxId;
  }

  /** Undefined until assigned. */
  get verifier(): TokenVerifier | undefined {
    return this.#verifier;
  }

  /** The sandbox's own environment, for every exec and service. */
  get env(): Readonly<Record<string, string>> {
    return this.#env;
  }

  get dnsServers(): readonly string[] {
    return this.#dnsServers;
  }

  get hostname(): string {
    return this.#hostname;
  }

  /** Its files are being written: whoever is to find them there waits. Never rejects. */
  get beingWritten(): Promise<void> | undefined {
    return this.#beingWritten;
  }

  /** `tooLate` is called, and nobody waits any longer, when they are not written within `withinMs`: a sandbox's own root may still what writes them. */
  writing(files: Promise<void>, tooLate: () => void, withinMs = filesDeadlineMs): void {
    const over = Promise.withResolvers<void>();
    const timer = setTimeout(() => {
      tooLate();
      over.resolve();
    }, withinMs);
    const written = Promise.race([files, over.promise]).then(() => {
      clearTimeout(timer);
      if (this.#beingWritten === written) this.#beingWritten = undefined;
    });
    this.#beingWritten = written;
  }

  become(sandbox: {
    id: string;
    verifier: TokenVerifier;
    env: Readonly<Record<string, string>>;
    dnsServers: readonly string[];
    hostname: string;
  }): void {
    this.#sandboxId = sandbox.id;
    this.#verifier = sandbox.verifier;
    this.#env = sandbox.env;
    this.#dnsServers = sandbox.dnsServers;
    this.#hostname = sandbox.hostname;
  }

  setKeys(keys: KeySet): void {
    if (this.#sandboxId === "") throw new ClocheError("failed_precondition", "the agent is not assigned yet");
    this.#verifier = new TokenVerifier(this.#sandboxId, keys);
  }
}

/** What of a sandbox's identity is written into its own tree. */
export interface IdentityFiles {
  /** Empty: left alone. */
  hostname: string;
  /** New machine-id and hosts file: for create and fork, not for resume. */
  renew: boolean;
  /** Empty: left alone. */
  dnsServers: readonly string[];
  /** 16 random bytes. */
  machineId: Buffer;
}

/**
 * Writes host name, hosts, resolver and machine-id into the users' tree (through the guest, so no link in it can lead
 * outside), and sets the kernel's host name. A tree that refuses one of them is still a sandbox: logged, not failed.
 */
export async function writeIdentity(guest: Guest, files: IdentityFiles, log: Log): Promise<void> {
  const write = (path: string, text: string, mode: number): Promise<void> =>
    guest.files
      .put(path, Buffer.from(text), mode)
      .catch((error: unknown) => log.warn("identity file not written", { path, error }));
  const { hostname, renew, dnsServers, machineId } = files;
  const writes = guest.files.together(() => {
    const asked: Promise<void>[] = [];
    if (renew) asked.push(write("/etc/machine-id", `${machineId.toString("hex")}\n`, 0o444));
    if (hostname !== "") {
      asked.push(write("/etc/hostname", `${hostname}\n`, 0o644));
      if (renew) asked.push(write("/etc/hosts", hostsFile(hostname), 0o644));
      asked.push(setKernelHostname(guest, hostname, log));
    }
    // Without a live name server programs hang for ten seconds, so the file is always written.
    if (dnsServers.length > 0) {
      const lines = dnsServers.map((server) => `nameserver ${server}\n`);
      asked.push(write("/etc/resolv.conf", lines.join(""), 0o644));
    }
    return asked;
  });
  await Promise.all(writes);
}

const hostsFile = (hostname: string): string =>
  `127.0.0.1\tlocalhost\n127.0.1.1\t${hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n`;

/** The host name belongs to the guest's namespace, so a guest that was started anew must be told again. */
export async function setKernelHostname(guest: Guest, hostname: string, log: Log): Promise<void> {
  await guest.files
    .setHostname(hostname)
    .catch((error: unknown) => log.warn("the kernel's host name was not set", { error }));
}

/** Host names are DNS labels: checked before they are written anywhere. */
export function checkHostname(hostname: string): string {
  if (hostname !== "" && !/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i.test(hostname)) {
    throw new ClocheError("invalid_argument", "hostname must be a DNS label");
  }
  return hostname;
}
