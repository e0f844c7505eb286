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
  pathBytes: 4_095,
  nameBytes: 255,
  symlinkHops: 40,
  redirects: 5,
  attempts: 3,
  parallelLayers: 3,
  connectTimeoutMs: 20_000,
  stallTimeoutMs: 60_000,
} as const;
