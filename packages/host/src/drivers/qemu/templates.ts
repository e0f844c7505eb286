// Templates: machines that were booted once, with the agent listening, and are started from ever after.
// Owns <pool>/vm-templates: <key>/ (a snapshot without a disk, see snapshot-files.ts) and building-*/.
//
//   wanted ──boot cold──▶ booted ──warm, pause, save──▶ sealed ──▶ started from, as often as wanted
//
// The key holds all that went in, so that an update of QEMU, kernel or agent makes new ones; the old are removed at the next
// start (machines that run from them keep their files by their own names).
// What survives a crash: sealed templates. A half-built one is removed at the next start.
import { randomBytes, createHash } from "node:crypto";
import { chmod, chown, copyFile, mkdir, readdir, rename, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { channelKeyOf, CleanupStack, syncFile } from "@cloche/base";
import { LISTEN_FD } from "../../artifacts/agent-root.ts";
import { askAgent } from "../../agent-calls/agent-answer.ts";
import { vmFiles, type VmShape } from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";
import { templateKey, type VmPlatform } from "./platform.ts";
import { openSnapshot, sealSnapshot, type SnapshotManifest, snapshotPaths } from "./snapshot-files.ts";
import { Vm } from "./vm.ts";

/** The largest disk a sandbox can have, so that every real disk is smaller than what a template's guest has seen. */
const PLACEHOLDER_DISK_BYTES = 1_048_576 * 1024 * 1024;
/** Requests before the snapshot: what they load and compile, every machine has from its first request on. */
const WARMING_REQUESTS = 20;
const SETTLE_MS = 500;
const BUILDING = "building-";

export interface VmTemplate {
  readonly dir: string;
  readonly manifest: SnapshotManifest;
}

export class VmTemplates {
  readonly #environment: VmEnvironment;
  readonly #dir: string;
  readonly #ready = new Map<string, Promise<VmTemplate>>();

  /** `dir` lies on the pool. */
  constructor(environment: VmEnvironment, dir: string) {
    this.#environment = environment;
    this.#dir = dir;
  }

  /** Removes what is half-built or made of another platform's parts; machines of half-built ones are swept before. */
  async clean(): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#dir)) {
      if (this.#ready.has(name.replace(BUILDING, ""))) continue;
      const current = !name.startsWith(BUILDING) && (await this.#isCurrent(name));
      if (!current) await rm(join(this.#dir, name), { recursive: true, force: true });
    }
  }

  /** Whether the machine of this id is one that becomes a template now. */
  isBuilding(id: string): boolean {
    return [...this.#ready.keys()].some((key) => templateMachineId(key) === id);
  }

  async #isCurrent(name: string): Promise<boolean> {
    try {
      const { shape } = await openSnapshot(join(this.#dir, name), this.#environment.platform);
      return name === templateKey(this.#environment.platform, shape);
    } catch {
      return false;
    }
  }

  /** The template of a shape; booted and saved the first time, which takes seconds (emulated: some more). */
  obtain(shape: VmShape): Promise<VmTemplate> {
    const key = templateKey(this.#environment.platform, shape);
    const known = this.#ready.get(key);
    if (known) return known;
    const made = this.#findOrBuild(key, shape);
    this.#ready.set(key, made);
    made.catch(() => this.#ready.delete(key));
    return made;
  }

  /** One that machines do not come up from: the next `obtain` makes it anew. Harmless when that has happened already. */
  async discard(template: VmTemplate): Promise<void> {
    for (const [key, made] of this.#ready) {
      if ((await made.catch(() => undefined)) !== template) continue;
      this.#ready.delete(key);
      await rm(template.dir, { recursive: true, force: true });
    }
  }

  async #findOrBuild(key: string, shape: VmShape): Promise<VmTemplate> {
    const { platform } = this.#environment;
    const dir = join(this.#dir, key);
    const found = await openSnapshot(dir, platform).catch(() => undefined);
    if (found) return { dir, manifest: found };
    await rm(dir, { recursive: true, force: true });
    await this.#build(key, shape).catch((error: unknown) => {
      // Once more: an emulated guest hangs in its early boot now and then, and the next one does not.
      this.#environment.log.warn({ err: error }, "a template's machine did not come up: booting another");
      return this.#build(key, shape);
    });
    return { dir, manifest: await openSnapshot(dir, platform) };
  }

  #build(key: string, shape: VmShape): Promise<void> {
    const environment = this.#environment;
    return CleanupStack.guard(async (stack) => {
      const building = join(this.#dir, `${BUILDING}${key}`);
      await rm(building, { recursive: true, force: true });
      const target = join(building, "template");
      await mkdir(target, { recursive: true, mode: 0o700 });
      stack.push("half-built template", () => rm(building, { recursive: true, force: true }));
      const diskImage = join(building, "placeholder.ext4");
      await writeFile(diskImage, "");
      await truncate(diskImage, PLACEHOLDER_DISK_BYTES);

      const bootstrapSecret = randomBytes(32).toString("base64url");
      const files = { id: templateMachineId(key), dir: building, diskImage };
      const vm = await Vm.start(environment, files, {
        shape,
        cpus: shape.vcpus,
        bootedFrom: bootedFrom(environment.platform),
        bootConfig: bootConfig(environment.agentPort, bootstrapSecret),
      });
      stack.push("machine of the template", () => vm.remove());
      for (let i = 0; i < WARMING_REQUESTS; i += 1)
        await askAgent(vm.agentHost, environment.agentPort, bootstrapSecret, environment.bootTimeoutMs);
      await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
      await vm.pause();
      await vm.saveDevices();
      await this.#collect(vm, target);
      await sealSnapshot(target, environment.platform, {
        shape,
        bootedFrom: bootedFrom(environment.platform),
        diskBytes: PLACEHOLDER_DISK_BYTES,
        createdAt: new Date().toISOString(),
        bootstrapSecret,
        agentPort: environment.agentPort,
      });
      await vm.remove();
      await rename(target, join(this.#dir, key));
      await rm(building, { recursive: true, force: true });
    });
  }

  /** Takes the files over from the paused machine, which is not to go on. */
  async #collect(vm: Vm, target: string): Promise<void> {
    const paths = snapshotPaths(target);
    await rename(join(vm.directory, vmFiles.memory), paths.memory);
    await rename(join(vm.directory, vmFiles.system), paths.system);
    await copyFile(join(vm.directory, vmFiles.devices), paths.devices);
    for (const path of [paths.memory, paths.system, paths.devices]) {
      await chown(path, 0, 0);
      await chmod(path, 0o444);
      await syncFile(path);
    }
  }
}

/** What the agent is started with (agent: boot-config.ts). What is secret in it ends with the first Assign. */
function bootConfig(port: number, bootstrapSecret: string): object {
  const bootstrapControlSecretSha256 = createHash("sha256").update(bootstrapSecret).digest("hex");
  const bootstrapChannelKey = channelKeyOf(bootstrapSecret).toString("hex");
  return {
    port,
    listenFd: LISTEN_FD,
    diskPath: "/mnt/disk",
    userNamespace: true,
    bootstrapControlSecretSha256,
    bootstrapChannelKey,
  };
}

export function bootedFrom(platform: VmPlatform): SnapshotManifest["bootedFrom"] {
  const { kernel, firstRoot, systemImage } = platform;
  return { kernel: kernel.key, firstRoot: firstRoot.key, systemImage: systemImage.key };
}

/** Ids of machines that become templates; no sandbox has such an id. */
export const templateMachineId = (key: string): string => `template-${key}`;
