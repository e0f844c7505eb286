/**
 * The identity of this machine's sandbox. An agent starts unassigned. Assign gives it the identity of a sandbox, and a clone of a
 * running sandbox a new identity. Kept in memory only, so a memory snapshot has it until the next Assign replaces it.
 */
import { ClocheError } from "@cloche/protocol";
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
  #bootId: string | undefined;
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

  /** That of each guest of this sandbox; undefined: the one that the kernel has. */
  get bootId(): string | undefined {
    return this.#bootId;
  }

  /** Resolves when the identity's files are written, for requests that need them. Never rejects. */
  get beingWritten(): Promise<void> | undefined {
    return this.#beingWritten;
  }

  /**
   * If the files are not written within `withinMs`, `tooLate` is called and requests stop waiting: root of the sandbox can stop the
   * process that writes them.
   */
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
    bootId: string | undefined;
  }): void {
    this.#sandboxId = sandbox.id;
    this.#verifier = sandbox.verifier;
    this.#env = sandbox.env;
    this.#dnsServers = sandbox.dnsServers;
    this.#hostname = sandbox.hostname;
    this.#bootId = sandbox.bootId;
  }
}

/** The parts of a sandbox's identity that are written into the users' tree. */
export interface IdentityFiles {
  /** Empty: unchanged. */
  hostname: string;
  /** Empty: unchanged. */
  dnsServers: readonly string[];
  /** 16 random bytes; undefined: unchanged. */
  machineId: Buffer | undefined;
  /** A UUID; undefined: unchanged. */
  bootId: string | undefined;
}

/**
 * Writes host name, hosts, resolver and machine-id into the users' tree (through the guest, so that no link can lead outside), and sets
 * the kernel's host name and the boot id. A file that cannot be written is logged and does not fail the sandbox.
 */
export async function writeIdentity(guest: Guest, files: IdentityFiles, log: Log): Promise<void> {
  const write = (path: string, text: Buffer | string, mode: number): Promise<void> =>
    guest.files
      .put(path, Buffer.from(text), mode)
      .catch((error: unknown) => log.warn("identity file not written", { path, error }));
  const { hostname, dnsServers, machineId, bootId } = files;
  const writes = guest.files.together(() => {
    const asked: Promise<void>[] = [];
    if (machineId !== undefined)
      asked.push(write("/etc/machine-id", `${machineId.toString("hex")}\n`, 0o444));
    if (bootId !== undefined) asked.push(setBootId(guest, bootId, log));
    if (hostname !== "") {
      asked.push(write("/etc/hostname", `${hostname}\n`, 0o644));
      const named = readSmall(guest, hostsPath).then((hosts) => hostsWith(hosts, hostname));
      asked.push(named.then((hosts) => (hosts === undefined ? undefined : write(hostsPath, hosts, 0o644))));
      asked.push(setKernelHostname(guest, hostname, log));
    }
    // With a dead name server programs hang for ten seconds, so the file is written whenever servers are known.
    if (dnsServers.length > 0) {
      const lines = dnsServers.map((server) => `nameserver ${server}\n`);
      asked.push(write("/etc/resolv.conf", lines.join(""), 0o644));
    }
    return asked;
  });
  await Promise.all(writes);
}

/** The host name belongs to the guest's namespace, so it is set in every new guest. */
async function setKernelHostname(guest: Guest, hostname: string, log: Log): Promise<void> {
  await guest.files
    .setHostname(hostname)
    .catch((error: unknown) => log.warn("the kernel's host name was not set", { error }));
}

async function setBootId(guest: Guest, bootId: string, log: Log): Promise<void> {
  await guest.files
    .setBootId(bootId)
    .catch((error: unknown) => log.warn("the boot id was not set", { error }));
}

const hostsPath = "/etc/hosts";
/** A larger hosts file is not changed. */
const hostsMaxBytes = 65_536;

/** Undefined: the file is too large. Empty: it is missing or cannot be read. */
async function readSmall(guest: Guest, path: string): Promise<Buffer | undefined> {
  try {
    const file = await guest.files.open(path);
    try {
      const size = file.sizeBytes ?? 0;
      return size > hostsMaxBytes ? undefined : await file.read(0, size);
    } finally {
      file.close();
    }
  } catch {
    return Buffer.alloc(0);
  }
}

/**
 * `hosts` with `hostname` at 127.0.1.1, as in Debian, in place of the former name; all other lines stay. Undefined: nothing has to
 * change. The file is bytes, because comments may be in any encoding.
 */
export function hostsWith(hosts: Buffer | undefined, hostname: string): Buffer | undefined {
  if (hosts === undefined) return undefined;
  const own = `127.0.1.1\t${hostname}`;
  if (hosts.length === 0) return Buffer.from(`${firstHosts}${own}\n`);
  const lines = hosts.toString("latin1").split("\n");
  if (lines.some((line) => namesOf(line).includes(hostname))) return undefined;
  const old = lines.findIndex((line) => addressOf(line) === "127.0.1.1");
  if (old >= 0) lines[old] = own;
  else lines.splice(lines.findIndex((line) => addressOf(line) === "127.0.0.1") + 1, 0, own);
  return Buffer.from(lines.join("\n"), "latin1");
}

const firstHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const fields = (line: string): string[] => line.replace(/#.*/, "").split(/\s+/).filter(Boolean);
const addressOf = (line: string): string | undefined => fields(line)[0];
const namesOf = (line: string): string[] => fields(line).slice(1);

/** Host names are DNS labels: checked before they are written anywhere. */
export function checkHostname(hostname: string): string {
  if (hostname !== "" && !/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i.test(hostname)) {
    throw new ClocheError("invalid_argument", "hostname must be a DNS label");
  }
  return hostname;
}
