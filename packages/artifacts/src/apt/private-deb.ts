/** Fetches Debian packages and unpacks them into a directory, without installing anything on the computer. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { debianSources, PrivateApt, type Versions } from "./private-apt.ts";

export interface PrivateDeb {
  readonly packages: readonly string[];
  /** Lines of a sources.list; default: stable, its updates and its security fixes. */
  readonly sources?: readonly string[];
  /** Metapackages: take the packages that they depend on instead of them. */
  readonly dependenciesOnly?: boolean;
  /** Directory in which the packages are unpacked. */
  readonly into: string;
}

/** Unpacks the newest versions of the sources. Answers the versions. */
export async function unpackPrivateDebs(request: PrivateDeb): Promise<Versions> {
  const dir = join(request.into, ".apt");
  const apt = await PrivateApt.open(dir, request.sources ?? (await debianSources()));
  await apt.update();
  const packages = request.dependenciesOnly ? await apt.dependencies(request.packages) : request.packages;
  const versions = await apt.unpack(packages, request.into);
  await rm(dir, { recursive: true, force: true });
  return versions;
}
