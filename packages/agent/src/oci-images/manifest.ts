import { type HealthCheck, readHealthCheck } from "./health-check.ts";
import { ImageError } from "./image-error.ts";
import { imageLimits } from "./image-limits.ts";
import { isDigest } from "./reference.ts";

/** A manifest's description of a blob. */
export interface Descriptor {
  mediaType: string;
  digest: string;
  sizeBytes: number;
}
export interface ImageManifest {
  config: Descriptor;
  layers: Descriptor[];
}
export interface IndexEntry extends Descriptor {
  os: string;
  architecture: string;
  variant: string;
  /** `org.opencontainers.image.ref.name`: a layout's tag. */
  refName: string;
}
/** The fields of an image's config that a container uses. */
export interface ImageConfig {
  env: Record<string, string>;
  entrypoint: string[];
  cmd: string[];
  user: string;
  workingDir: string;
  exposedPorts: string[];
  /** Directories that must be there, as paths in the container. */
  volumes: string[];
  /** Name or number of the signal that ends the program; empty: the image names none. */
  stopSignal: string;
  /** How long the program may take to end; null: the image does not say. */
  stopTimeoutSeconds: number | null;
  healthCheck: HealthCheck | null;
  /** Digests of the layers' uncompressed tars, bottom first. */
  diffIds: string[];
}

export const manifestTypes = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.v2+json",
] as const;

type Fields = Record<string, unknown>;

/** Reads a manifest or an index, told apart by their fields. Throws ImageError. */
export function parseManifest(bytes: Buffer): { manifest: ImageManifest } | { index: IndexEntry[] } {
  const fields = parseObject(bytes, "manifest");
  if (Array.isArray(fields["manifests"])) {
    if (fields["manifests"].length > imageLimits.indexManifests)
      throw new ImageError("the image's index is too long");
    return { index: fields["manifests"].map((entry) => readIndexEntry(asObject(entry, "index entry"))) };
  }
  if (!Array.isArray(fields["layers"]) || fields["config"] === undefined) {
    throw new ImageError(
      "the image's manifest has an old or unknown form; schema 2 and OCI images are supported",
    );
  }
  if (fields["layers"].length > imageLimits.layers) throw new ImageError("the image has too many layers");
  return {
    manifest: {
      config: readDescriptor(asObject(fields["config"], "config")),
      layers: fields["layers"].map((layer) => readDescriptor(asObject(layer, "layer"))),
    },
  };
}

/** The entry of an index for this machine. Throws ImageError that names the available platforms. */
export function choosePlatform(entries: readonly IndexEntry[], architecture: string): IndexEntry {
  const usable = entries.filter((entry) => entry.os === "linux" && entry.architecture === architecture);
  const wanted = architecture === "arm64" ? ["v8", ""] : ["", "v1"];
  for (const variant of wanted) {
    const found = usable.find((entry) => entry.variant === variant);
    if (found !== undefined) return found;
  }
  if (usable[0] !== undefined) return usable[0];
  // An index with a single image without a platform means that image.
  const [only] = entries;
  if (entries.length === 1 && only !== undefined && only.architecture === "") return only;
  const known = entries
    .filter(({ os }) => os !== "unknown")
    .map(({ os, architecture: other }) => `${os}/${other}`);
  throw new ImageError(
    `the image has no build for linux/${architecture}; it has ${[...new Set(known)].slice(0, 20).join(", ") || "none"}`,
  );
}

export function parseConfig(bytes: Buffer): ImageConfig {
  const fields = parseObject(bytes, "config");
  const config =
    fields["config"] === undefined || fields["config"] === null ? {} : asObject(fields["config"], "config");
  const rootfs = asObject(fields["rootfs"], "rootfs");
  const strings = (value: unknown): string[] =>
    Array.isArray(value)
      ? value.filter((item): item is string => typeof item === "string" && !item.includes("\0"))
      : [];
  const text = (value: unknown): string => (typeof value === "string" && !value.includes("\0") ? value : "");
  const env: [string, string][] = [];
  for (const pair of strings(config["Env"])) {
    const equals = pair.indexOf("=");
    if (equals > 0) env.push([pair.slice(0, equals), pair.slice(equals + 1)]);
  }
  const keys = (value: unknown): string[] =>
    typeof value === "object" && value !== null ? strings(Object.keys(value)).slice(0, imageLimits.keys) : [];
  const stopTimeout = config["StopTimeout"];
  return {
    env: Object.fromEntries(env),
    entrypoint: strings(config["Entrypoint"]),
    cmd: strings(config["Cmd"]),
    user: text(config["User"]),
    workingDir: text(config["WorkingDir"]),
    exposedPorts: keys(config["ExposedPorts"]),
    volumes: keys(config["Volumes"]).filter((path) => path.startsWith("/")),
    stopSignal: text(config["StopSignal"]),
    stopTimeoutSeconds:
      typeof stopTimeout === "number" && Number.isInteger(stopTimeout) && stopTimeout >= 0
        ? stopTimeout
        : null,
    healthCheck: readHealthCheck(config["Healthcheck"], strings(config["Shell"])) ?? null,
    diffIds: strings(rootfs["diff_ids"]),
  };
}

export function readDescriptor(fields: Fields): Descriptor {
  const { mediaType, digest, size } = fields;
  if (typeof digest !== "string" || !isDigest(digest))
    throw new ImageError("the image's manifest has a malformed digest");
  if (typeof size !== "number" || !Number.isSafeInteger(size) || size < 0) {
    throw new ImageError("the image's manifest has a malformed size");
  }
  return { mediaType: typeof mediaType === "string" ? mediaType : "", digest, sizeBytes: size };
}

function readIndexEntry(fields: Fields): IndexEntry {
  const platform =
    typeof fields["platform"] === "object" && fields["platform"] !== null
      ? (fields["platform"] as Fields)
      : {};
  const notes =
    typeof fields["annotations"] === "object" && fields["annotations"] !== null
      ? (fields["annotations"] as Fields)
      : {};
  const text = (value: unknown): string => (typeof value === "string" ? value : "");
  return {
    ...readDescriptor(fields),
    os: text(platform["os"]),
    architecture: text(platform["architecture"]),
    variant: text(platform["variant"]),
    refName: text(notes["org.opencontainers.image.ref.name"]),
  };
}

function parseObject(bytes: Buffer, what: string): Fields {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString("utf8"));
  } catch (error) {
    throw new ImageError(`the image's ${what} is not valid JSON`, error);
  }
  return asObject(value, what);
}

function asObject(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ImageError(`the image's ${what} is malformed`);
  }
  return value as Fields;
}
