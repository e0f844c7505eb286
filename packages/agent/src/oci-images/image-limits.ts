/**
 * Limits on the data that an image makes the puller read, keep or write; beyond them the pull fails. Sizes in bytes. A whole image has
 * no limit of its own: it must fit on the sandbox's disk (checkSpace in image-puller.ts).
 */
export const imageLimits = {
  manifestBytes: 4 * 1024 * 1024,
  configBytes: 8 * 1024 * 1024,
  tokenAnswerBytes: 1024 * 1024,
  /** Ports, and volumes, that a config names: the first ones count. */
  keys: 100,
  layers: 512,
  indexDepth: 3,
  indexManifests: 4_096,
  /** Files, directories and links of one image, over all its layers. */
  entries: 2_000_000,
  extendedHeaderBytes: 1024 * 1024,
  /** Length of a path below the container's root; the root's own path takes the rest of PATH_MAX. */
  pathBytes: 3_840,
  linkTargetBytes: 4_095,
  /** Hard links of one file: ext4's limit. */
  hardLinks: 65_000,
  /** Largest owner id: 2^32-1 means "unchanged" to chown. */
  ownerId: 0xffff_fffe,
  nameBytes: 255,
  symlinkHops: 40,
  redirects: 5,
  attempts: 3,
  parallelLayers: 3,
  connectTimeoutMs: 20_000,
  stallTimeoutMs: 60_000,
} as const;
