/**
 * A real registry (Debian's docker-registry) on loopback and images assembled by umoci, for tests. Installs the Debian
 * packages where they are missing; needs root.
 */
import { type ChildProcess, execFile, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createHash } from "node:crypto";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer as createHttpServer, request as httpRequest } from "node:http";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
export const isRoot = process.getuid?.() === 0;
if (!isRoot) console.warn("tests/oci are skipped: containers need root");

const packages = {
  umoci: "umoci",
  skopeo: "skopeo",
  "docker-registry": "docker-registry",
  busybox: "busybox-static",
  "redis-check-rdb": "redis-tools",
};

/** Installs what is missing of the programs that the tests use. */
export function installTools(): void {
  const missing = Object.entries(packages).filter(([program]) => !onPath(program));
  if (missing.length === 0) return;
  const names = missing.map(([, name]) => name);
  console.warn(`installing ${names.join(", ")} for tests/oci`);
  const options = { stdio: "ignore" as const, env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" } };
  execFileSync("apt-get", ["update", "-qq"], options);
  execFileSync("apt-get", ["install", "-y", "-qq", "--no-install-recommends", ...names], options);
}

function onPath(program: string): boolean {
  return (process.env["PATH"] ?? "").split(":").some((folder) => existsSync(join(folder, program)));
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export interface Registry {
  address: string;
  folder: string;
  close(): Promise<void>;
}

/** Starts a registry; with `tls` (certificate and key files) over HTTPS, with `users` (an htpasswd file) behind a password. */
export async function startRegistry(
  options: { tls?: { cert: string; key: string }; users?: string } = {},
): Promise<Registry> {
  const folder = mkdtempSync(join(tmpdir(), "cloche-registry-"));
  const port = await freePort();
  const config = {
    version: "0.1",
    log: { level: "error", accesslog: { disabled: true } },
    storage: { filesystem: { rootdirectory: join(folder, "data") }, delete: { enabled: true } },
    http: {
      addr: `127.0.0.1:${port}`,
      secret: "test",
      ...(options.tls === undefined ? {} : { tls: { certificate: options.tls.cert, key: options.tls.key } }),
    },
    ...(options.users === undefined ? {} : { auth: { htpasswd: { realm: "test", path: options.users } } }),
  };
  writeFileSync(join(folder, "config.yml"), JSON.stringify(config));
  const child: ChildProcess = spawn("docker-registry", ["serve", join(folder, "config.yml")], {
    stdio: "ignore",
  });
  const address = `127.0.0.1:${port}`;
  const scheme = options.tls === undefined ? "http" : "https";
  for (let tries = 0; ; tries += 1) {
    const code = await curlStatus(`${scheme}://${address}/v2/`);
    if (code === "200" || code === "401") break;
    if (tries > 200 || child.exitCode !== null) throw new Error("docker-registry did not start");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    address,
    folder,
    close: async () => {
      const ended = once(child, "exit");
      if (child.exitCode === null && child.kill()) await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export interface Gate {
  address: string;
  open(): void;
  close(): Promise<void>;
}

/** A way to a registry that lets half of every blob larger than 64 KiB through, and the rest once it is opened. */
export async function startGate(registry: string): Promise<Gate> {
  const { promise: opened, resolve: open } = Promise.withResolvers<void>();
  const largeBytes = 65_536;
  const server = createHttpServer((incoming, outgoing) => {
    const { method, url, headers } = incoming;
    const asked = httpRequest(`http://${registry}${url}`, { method, headers, agent: false }, (answer) => {
      outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
      const half = Number(answer.headers["content-length"] ?? 0) / 2;
      const pass = async (): Promise<void> => {
        let passed = 0;
        for await (const chunk of answer as AsyncIterable<Buffer>) {
          if (half * 2 > largeBytes && passed + chunk.length > half) await opened;
          passed += chunk.length;
          outgoing.write(chunk);
        }
        outgoing.end();
      };
      pass().catch(() => outgoing.destroy());
    });
    asked.on("error", () => outgoing.destroy());
    incoming.pipe(asked);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    open,
    close: async () => {
      open();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function curlStatus(url: string): Promise<string> {
  try {
    return (await run("curl", ["-sk", "-o", "/dev/null", "-w", "%{http_code}", url])).stdout;
  } catch {
    return "";
  }
}

/** Builds images in an OCI layout, each from files and programs of this machine, one umoci layer a step. */
interface LayoutEntry {
  digest: string;
  size: number;
  annotations?: Record<string, string>;
}

export class ImageWorkshop {
  readonly folder: string;
  readonly layout: string;

  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "cloche-images-"));
    this.layout = join(this.folder, "layout");
    execFileSync("umoci", ["init", "--layout", this.layout]);
  }

  /** Makes `tag` from nothing or from another tag: each step changes the root and becomes a layer. */
  async build(
    tag: string,
    options: { from?: string; config?: string[]; steps: ((root: string) => void | Promise<void>)[] },
  ): Promise<void> {
    const image = `${this.layout}:${tag}`;
    if (options.from === undefined) await run("umoci", ["new", "--image", image]);
    else await run("umoci", ["tag", "--image", `${this.layout}:${options.from}`, tag]);
    for (const step of options.steps) {
      const bundle = mkdtempSync(join(this.folder, "bundle-"));
      await run("umoci", ["unpack", "--image", image, join(bundle, "b")]);
      await step(join(bundle, "b", "rootfs"));
      await run("umoci", ["repack", "--image", image, join(bundle, "b")]);
      rmSync(bundle, { recursive: true, force: true });
    }
    if (options.config !== undefined) await run("umoci", ["config", "--image", image, ...options.config]);
  }

  /** Makes `tag` of another with more fields in its config: also Docker's own, which umoci cannot set. */
  configure(tag: string, from: string, fields: Record<string, unknown>): void {
    const store = (value: object): { digest: string; size: number } => {
      const bytes = Buffer.from(JSON.stringify(value));
      const hash = createHash("sha256").update(bytes).digest("hex");
      writeFileSync(join(this.layout, "blobs/sha256", hash), bytes);
      return { digest: `sha256:${hash}`, size: bytes.length };
    };
    const load = <T>(digest: string): T =>
      JSON.parse(readFileSync(join(this.layout, "blobs", digest.replace(":", "/")), "utf8")) as T;
    const indexPath = join(this.layout, "index.json");
    const index = JSON.parse(readFileSync(indexPath, "utf8")) as { manifests: LayoutEntry[] };
    const refName = "org.opencontainers.image.ref.name";
    const found = index.manifests.find(({ annotations }) => annotations?.[refName] === from);
    if (found === undefined) throw new Error(`there is no ${from}`);
    const manifest = load<{ config: LayoutEntry }>(found.digest);
    const config = load<{ config: object }>(manifest.config.digest);
    const changed = store({ ...config, config: { ...config.config, ...fields } });
    const made = store({ ...manifest, config: { ...manifest.config, ...changed } });
    index.manifests.push({ ...found, ...made, annotations: { [refName]: tag } });
    writeFileSync(indexPath, JSON.stringify(index));
  }

  /** Pushes `tag` to a registry as `name`; `format` and `compression` as skopeo takes them. */
  async push(tag: string, registry: string, name: string, ...more: string[]): Promise<void> {
    await run("skopeo", [
      "copy",
      "-q",
      "--insecure-policy",
      "--dest-tls-verify=false",
      ...more,
      `oci:${this.layout}:${tag}`,
      `docker://${registry}/${name}`,
    ]);
  }

  close(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A root with busybox and its shell. */
export function addBusybox(root: string): void {
  for (const folder of ["bin", "etc", "tmp", "var", "root"])
    mkdirSync(join(root, folder), { recursive: true });
  cpSync(which("busybox"), join(root, "bin/busybox"));
  execFileSync(
    "sh",
    ["-c", `for a in $(./busybox --list); do [ "$a" = busybox ] || ln -sf busybox "$a"; done`],
    {
      cwd: join(root, "bin"),
    },
  );
  writeFileSync(
    join(root, "etc/passwd"),
    "root:x:0:0:root:/root:/bin/sh\nkeeper:x:1234:1234::/var:/bin/sh\n",
  );
  writeFileSync(join(root, "etc/group"), "root:x:0:\nkeeper:x:1234:\n");
}

/** Copies a program of this machine with every library that it loads; `name` where it is called otherwise in the root. */
export function addProgram(root: string, program: string, name = program): void {
  const path = which(program);
  const libraries = execFileSync("ldd", [path], { encoding: "utf8" }).matchAll(/(\/\S+)/g);
  for (const file of [path, ...[...libraries].map(([, library = ""]) => library)]) {
    if (!existsSync(file)) continue;
    mkdirSync(dirname(join(root, file)), { recursive: true });
    execFileSync("cp", ["-L", file, join(root, file)]);
  }
  if (name !== program) renameSync(join(root, path), join(root, dirname(path), name));
}

export function which(program: string): string {
  return execFileSync("sh", ["-c", `command -v ${program}`], { encoding: "utf8" }).trim();
}
