import { ImageError } from "./image-error.ts";

/** The source of an image. */
export type ImageReference =
  | {
      kind: "registry";
      /** Host and port for HTTP. */
      registry: string;
      repository: string;
      /** The digest if the reference has one, else the tag. */
      target: string;
      digest: string | undefined;
    }
  | { kind: "layout"; path: string; tag: string | undefined };

const dockerHub = "registry-1.docker.io";
const hubNames = new Set(["docker.io", "index.docker.io", dockerHub]);
const component = "[a-z0-9]+(?:(?:\\.|_|__|-+)[a-z0-9]+)*";
const repositoryForm = new RegExp(`^${component}(?:/${component})*$`);
const hostForm = /^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?$/i;

/**
 * Reads an image reference in the usual form: `redis`, `redis:7`, `ghcr.io/org/app:v1`, `host:5000/app@sha256:…`, or
 * `oci:/path/to/layout[:tag]` for an OCI layout on the sandbox's disk. Throws ImageError that names the fault.
 */
export function parseReference(text: string): ImageReference {
  if (text.startsWith("oci:")) return parseLayout(text);
  const wrong = (why: string): ImageError =>
    new ImageError(`image ${JSON.stringify(text)} is no image reference: ${why}`);
  if (text.length > 1_024) throw wrong("it is too long");
  if (text.includes("://")) throw wrong("it must not begin with a scheme");
  const [beforeDigest = "", digest, ...rest] = text.split("@");
  if (rest.length > 0) throw wrong("it has more than one @");
  if (digest !== undefined && !isDigest(digest))
    throw wrong("its digest is not sha256: or sha512: and hex digits");
  const slash = beforeDigest.indexOf("/");
  const first = beforeDigest.slice(0, Math.max(slash, 0));
  const hasHost = slash > 0 && (/[.:[]/.test(first) || first === "localhost");
  const path = hasHost ? beforeDigest.slice(slash + 1) : beforeDigest;
  const colon = path.lastIndexOf(":");
  const name = colon < 0 ? path : path.slice(0, colon);
  const tag = colon < 0 ? undefined : path.slice(colon + 1);
  if (tag !== undefined && !/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/.test(tag))
    throw wrong("its tag is malformed");
  if (hasHost && !hostForm.test(first)) throw wrong("its registry is no host name");
  const onHub = !hasHost || hubNames.has(first);
  const repository = onHub && !name.includes("/") ? `library/${name}` : name;
  if (!repositoryForm.test(repository) || repository.length > 255) {
    throw wrong("its name must be lower-case letters, digits and . _ - between them");
  }
  return {
    kind: "registry",
    registry: onHub ? dockerHub : first,
    repository,
    target: digest ?? tag ?? "latest",
    digest,
  };
}

function parseLayout(text: string): ImageReference {
  const place = text.slice("oci:".length);
  const colon = place.lastIndexOf(":");
  const hasTag = colon > place.lastIndexOf("/");
  const path = hasTag ? place.slice(0, colon) : place;
  if (!path.startsWith("/") || path.includes("\0")) {
    throw new ImageError(`image ${JSON.stringify(text)}: oci: must be followed by an absolute path`);
  }
  return { kind: "layout", path, tag: hasTag ? place.slice(colon + 1) : undefined };
}

/** Whether the text is a digest with a supported algorithm. */
export function isDigest(text: string): boolean {
  return /^(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$/.test(text);
}

/** Whether a registry is on the sandbox's loopback, where plain HTTP is allowed. */
export function isLoopback(registry: string): boolean {
  return /^(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?$/.test(registry);
}
