/**
 * Templates: snapshots of machines that were booted once until the agent listened. New machines are started from them.
 * Owns <pool>/vm-templates: <key>/ (a snapshot without a disk, see snapshot-files.ts) and building-*.
 *
 *   wanted ──boot cold──▶ booted ──warm, pause, save──▶ sealed ──▶ started from, as often as wanted
 *
 * The key covers all inputs, so that an update of QEMU, kernel or agent makes new templates. The next start removes the old ones
 * (machines that run from them keep the files by their own hard links).
 * Sealed templates survive a crash. The next start removes a half-built one.
 */
import { randomBytes, createHash } from "node:crypto";
import { chmod, chown, copyFile, mkdir, readdir, rename, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { listenerFd } from "@cloche/artifacts";
import { channelKeyOf, CleanupStack, syncFile } from "@cloche/base";
import { askAgent } from "../../agent-calls/agent-answer.ts";
import { vmFiles, type VmShape } from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";
import { templateKey, type VmPlatform } from "./platform.ts";
import { openSnapshot, sealSnapshot, type SnapshotManifest, snapshotPaths } from "./snapshot-files.ts";
import { Vm } from "./vm.ts";

/** The largest disk that a sandbox can have, so that no real disk is larger than the one the template's guest has seen. */
const placeholderDiskBytes = 1_048_576 * 1024 * 1024;
/** Requests before the snapshot, so that every machine has their code loaded and compiled from the start. */
const warmingRequests = 20;
const settleMs = 500;
const buildingPrefix = "building-";

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

  /** Removes templates that are half-built or of another platform. Their machines are swept before. */
  async clean(): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#dir)) {
      if (this.#ready.has(name.replace(buildingPrefix, ""))) continue;
      const current = !name.startsWith(buildingPrefix) && (await this.#isCurrent(name));
      if (!current) await rm(join(this.#dir, name), { recursive: true, force: true });
    }
  }

  /** Whether the machine with this id is becoming a template now. */
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

  /** The template of a shape. The first call boots and saves it, which takes seconds, under emulation longer. */
  obtain(shape: VmShape): Promise<VmTemplate> {
    const key = templateKey(this.#environment.platform, shape);
    const known = this.#ready.get(key);
    if (known) return known;
    const made = this.#findOrBuild(key, shape);
    this.#ready.set(key, made);
    made.catch(() => this.#ready.delete(key));
    return made;
  }

  /** The directory of a shape's template, if it was already made. Its memory and system image never change. */
  async known(shape: VmShape): Promise<string | undefined> {
    const { platform } = this.#environment;
    const dir = join(this.#dir, templateKey(platform, shape));
    const found = await openSnapshot(dir, platform).catch(() => undefined);
    return found && dir;
  }

  /** Removes a template that does not work: the next `obtain` makes it anew. Harmless if that has already happened. */
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
      // Try once more: an emulated guest sometimes hangs early in its boot.
      this.#environment.log.warn({ err: error }, "a template's machine did not come up: booting another");
      return this.#build(key, shape);
    });
    return { dir, manifest: await openSnapshot(dir, platform) };
  }

  #build(key: string, shape: VmShape): Promise<void> {
    const environment = this.#environment;
    return CleanupStack.guard(async (stack) => {
      const building = join(this.#dir, `${buildingPrefix}${key}`);
      await rm(building, { recursive: true, force: true });
      const target = join(building, "template");
      await mkdir(target, { recursive: true, mode: 0o700 });
      stack.push("half-built template", () => rm(building, { recursive: true, force: true }));
      const diskImage = join(building, "placeholder.ext4");
      await writeFile(diskImage, "");
      await truncate(diskImage, placeholderDiskBytes);

      const bootstrapSecret = randomBytes(32).toString("base64url");
      const files = { id: templateMachineId(key), dir: building, diskImage };
      const vm = await Vm.start(environment, files, {
        shape,
        cpus: shape.vcpus,
        bootedFrom: bootedFrom(environment.platform),
        bootConfig: bootConfig(environment.agentPort, bootstrapSecret),
      });
      stack.push("machine of the template", () => vm.remove());
      for (let i = 0; i < warmingRequests; i += 1)
        await askAgent(vm.agentHost, environment.agentPort, bootstrapSecret, environment.bootTimeoutMs);
      await new Promise((resolve) => setTimeout(resolve, settleMs));
      await vm.pause();
      await vm.saveDevices();
      await this.#collect(vm, target);
      await sealSnapshot(target, environment.platform, {
        shape,
        bootedFrom: bootedFrom(environment.platform),
        diskBytes: placeholderDiskBytes,
        createdAt: new Date().toISOString(),
        bootstrapSecret,
        agentPort: environment.agentPort,
      });
      await vm.remove();
      await rename(target, join(this.#dir, key));
      await rm(building, { recursive: true, force: true });
    });
  }

  /** Moves the files out of the paused machine, which is not resumed any more. */
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

/** The agent's boot configuration (agent: boot-config.ts). Its secrets are invalid after the first Assign. */
function bootConfig(port: number, bootstrapSecret: string): object {
  const bootstrapControlSecretSha256 = createHash("sha256").update(bootstrapSecret).digest("hex");
  const bootstrapChannelKey = channelKeyOf(bootstrapSecret).toString("hex");
  return {
    port,
    listenFd: listenerFd,
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
