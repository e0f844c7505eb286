/**
 * Services in OCI containers (spec/contract.md, services). Each container has its own root on the sandbox's disk. The root is made from
 * the image on first start and kept until the service is deleted or names another image, so that the data of a database survives
 * restarts, checkpoints and restores.
 *
 *   containers/<name>       rootfs and container.json: complete
 *   containers/<name>.new   being made; removed after a failure, and by `tidy` after a crash
 *   images                  blobs, shared by all containers (oci-images/blobs.ts)
 *
 * One image is pulled at a time, so that a second container of the same image finds its layers on the disk.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { ServiceDefinition } from "@cloche/protocol";
import {
  LaunchError,
  type Launched,
  type Launcher,
  launchProgram,
  type LaunchRequest,
} from "../services/launcher.ts";
import { programEnvironment } from "../exec/index.ts";
import type { ProcessTable } from "../processes/index.ts";
import type { Guest, Spawner } from "../spawner/index.ts";
import { BlobCache } from "../oci-images/blobs.ts";
import type { ImageConfig } from "../oci-images/manifest.ts";
import { pull, PullError } from "../oci-images/pull.ts";
import type { PulledImage, PullRequest } from "../oci-images/pull-protocol.ts";

export interface ContainerParts {
  /** The disk's `cloche` folder. */
  folder: string;
  spawner: Spawner;
  processes: ProcessTable;
  /** Node and the agent's bundle, to run the pull process with. */
  program: readonly string[];
  /** The sandbox's own environment. */
  environment(): Readonly<Record<string, string>>;
  dnsServers(): readonly string[];
}

/** container.json. */
interface ContainerFile {
  image: string;
  pulled: PulledImage;
}

export class ContainerLauncher implements Launcher {
  readonly #parts: ContainerParts;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(parts: ContainerParts) {
    this.#parts = parts;
  }

  async launch(request: LaunchRequest): Promise<Launched> {
    const { name, definition, log, onOutput } = request;
    const { config } = await this.#ready(request);
    const argv = commandLine(definition, config);
    const { spawner, environment, processes } = this.#parts;
    const guest = await spawner.openContainer(name, {
      root: join(this.#folder(name), "rootfs"),
      hostname: hostnameOf(name),
      tmpfs: [],
    });
    try {
      const workingDir = definition.working_dir ?? (config.workingDir === "" ? "/" : config.workingDir);
      await this.#writeFiles(guest, name, [workingDir, ...config.volumes]);
      const env = programEnvironment(config.env, environment(), definition.env);
      const user = definition.user ?? config.user;
      const process = await launchProgram(guest, {
        argv,
        env,
        cwd: workingDir,
        ...(user === "" ? {} : { user }),
        log,
        onOutput,
        processes,
        kind: "container",
        name,
      });
      const release = async (graceMs: number): Promise<void> => {
        await guest.settle(graceMs);
        await guest.close();
      };
      return { process, container: { guest, env, user, workingDir, image: config }, release };
    } catch (error) {
      await guest.close();
      throw error;
    }
  }

  /** Removes a container and the blobs that no other container uses. */
  remove(name: string): Promise<void> {
    const folders = [this.#folder(name), `${this.#folder(name)}.new`];
    if (!folders.some((folder) => existsSync(folder))) return Promise.resolve();
    return this.#inTurn(async () => {
      for (const folder of folders) await rm(folder, { recursive: true, force: true });
      this.#dropUnusedBlobs();
    });
  }

  /** After a crash: removes roots that were being made or removed, and the files of interrupted pulls. */
  tidy(names: ReadonlySet<string>): Promise<void> {
    const { folder } = this.#parts;
    const litter = listFolder(join(folder, "containers")).filter((name) => !names.has(name));
    if (litter.length === 0 && !existsSync(join(folder, "images", "incoming"))) return Promise.resolve();
    return this.#inTurn(async () => {
      for (const name of litter) await rm(join(folder, "containers", name), { recursive: true, force: true });
      this.#dropUnusedBlobs();
    });
  }

  /** The container's root; made if it is missing or of another image. */
  async #ready(request: LaunchRequest): Promise<PulledImage> {
    const image = request.definition.image ?? "";
    const present = this.#read(request.name);
    if (present?.image === image) return present.pulled;
    request.onPhase("pulling");
    try {
      return await this.#inTurn(() => this.#make(request, image));
    } catch (error) {
      if (error instanceof PullError) throw new LaunchError(`image ${image}: ${error.message}`, null, error);
      throw error;
    } finally {
      request.onPhase("starting");
    }
  }

  async #make(request: LaunchRequest, image: string): Promise<PulledImage> {
    const { name, definition, log, signal } = request;
    const { folder, program, spawner, dnsServers } = this.#parts;
    const draft = `${this.#folder(name)}.new`;
    if (signal.aborted) throw new PullError("the pull was called off");
    await rm(draft, { recursive: true, force: true });
    mkdirSync(draft, { recursive: true, mode: 0o700 });
    log.note(`pulling ${image}`);
    const files = (): Guest["files"] => spawner.guest.files;
    try {
      const pulled = await pull(
        program,
        pullRequest(definition, image, folder, draft, dnsServers()),
        files,
        { note: (text) => log.note(text), progress: request.onPull },
        signal,
      );
      const file: ContainerFile = { image, pulled };
      await writeFile(join(draft, "container.json"), JSON.stringify(file), { mode: 0o600 });
      await files().sync(); // complete on the disk before it gets its name
      await rm(this.#folder(name), { recursive: true, force: true });
      await rename(draft, this.#folder(name));
      log.note(`pulled ${image} (${pulled.digest})`);
      return pulled;
    } catch (error) {
      await rm(draft, { recursive: true, force: true });
      this.#dropUnusedBlobs();
      throw error;
    }
  }

  /** Removes blobs that no container uses, and files of interrupted pulls. */
  #dropUnusedBlobs(): void {
    const used = new Set<string>();
    for (const name of listFolder(join(this.#parts.folder, "containers")))
      for (const blob of this.#read(name)?.pulled.blobs ?? []) used.add(blob);
    const blobs = new BlobCache(join(this.#parts.folder, "images"));
    blobs.removeIncoming();
    blobs.keepOnly(used);
  }

  /** Writes the container's own files and makes those `folders` that the image does not have, for root. */
  async #writeFiles(guest: Guest, name: string, folders: readonly string[]): Promise<void> {
    const hostname = hostnameOf(name);
    const servers = this.#parts.dnsServers();
    const write = (path: string, text: string): Promise<unknown> =>
      guest.files.write(path, Buffer.from(text), 0o644).catch(() => undefined); // an odd image is still an image
    await Promise.all([
      write("/etc/hostname", `${hostname}\n`),
      write(
        "/etc/hosts",
        `127.0.0.1\tlocalhost\n127.0.1.1\t${hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n`,
      ),
      ...(servers.length > 0
        ? [write("/etc/resolv.conf", servers.map((server) => `nameserver ${server}\n`).join(""))]
        : []),
      ...folders.map((path) => guest.files.mkdir(path, true).catch(() => undefined)),
    ]);
  }

  #read(name: string): ContainerFile | undefined {
    const folder = this.#folder(name);
    try {
      const file = JSON.parse(readFileSync(join(folder, "container.json"), "utf8")) as ContainerFile;
      if (!existsSync(join(folder, "rootfs"))) return undefined;
      return file;
    } catch {
      return undefined;
    }
  }

  #folder(name: string): string {
    return join(this.#parts.folder, "containers", name);
  }

  #inTurn<Answer>(work: () => Promise<Answer>): Promise<Answer> {
    const turn = this.#turn.then(work, work);
    this.#turn = turn.catch(() => undefined);
    return turn;
  }
}

function listFolder(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}

function pullRequest(
  definition: ServiceDefinition,
  image: string,
  folder: string,
  draft: string,
  dnsServers: readonly string[],
): PullRequest {
  const { registry_username: username, registry_password: password, registry_ca: ca } = definition;
  return {
    image,
    architecture: process.arch === "x64" ? "amd64" : process.arch,
    imagesFolder: join(folder, "images"),
    rootFolder: join(draft, "rootfs"),
    dnsServers,
    ...(username === undefined ? {} : { username }),
    ...(password === undefined ? {} : { password }),
    ...(ca === undefined ? {} : { ca }),
  };
}

/** spec/contract.md: an empty `cmd` is the image's entrypoint with `args` in place of its cmd; any other replaces both. */
export function commandLine(
  definition: ServiceDefinition,
  image: Pick<ImageConfig, "entrypoint" | "cmd">,
): string[] {
  const argv =
    definition.cmd === ""
      ? [...image.entrypoint, ...(definition.args ?? image.cmd)]
      : [definition.cmd, ...(definition.args ?? [])];
  if (argv.length === 0) throw new LaunchError("the image names no program; set cmd", null);
  return argv;
}

/** Service names may hold `_` and end in `-`; host names must not. */
const hostnameOf = (name: string): string => name.replaceAll("_", "-").replace(/-+$/, "") || "container";
