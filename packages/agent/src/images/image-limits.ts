/** What an image may make the puller read, keep or write; beyond it the pull fails. Sizes in bytes. */
export const imageLimits = {
  manifestBytes: 4 * 1024 * 1024,
  configBytes: 8 * 1024 * 1024,
  tokenAnswerBytes: 1024 * 1024,
  layers: 512,
  indexDepth: 3,
  indexManifests: 4_096,
  /** Files, directories and links of one image, over all its layers. */
  entries: 2_000_000,
  extendedHeaderBytes: 1024 * 1024,
  /** Of a path below the container's root, which takes the rest of PATH_MAX. */
  pathBytes: 3_840,
  linkTargetBytes: 4_095,
  /** Names of one file: ext4's limit. */
  hardLinks: 65_000,
  /** Owners: 2^32-1 means "as it is" to chown. */
  ownerId: 0xffff_fffe,
  nameBytes: 255,
  symlinkHops: 40,
  redirects: 5,
  attempts: 3,
  parallelLayers: 3,
  connectTimeoutMs: 20_000,
  stallTimeoutMs: 60_000,
} as const;
