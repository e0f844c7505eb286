/** Parses versions of runsc. gVisor numbers releases by their day: "release-20260905.0" or "20260905.0". */

/** The oldest release with the options, control protocol and fixes that the driver needs. */
export const oldestRelease = "20260905";

export interface RunscVersion {
  /** As `runsc --version` prints it, for example "20260905.0" or "release-20261116.0". */
  readonly version: string;
  /** The day of the release; undefined: the version has none. */
  readonly released: Date | undefined;
}

/** Parses the output of `runsc --version`; undefined for other output. */
export function parseRunscVersion(stdout: string): RunscVersion | undefined {
  const version = /^runsc version\s+(\S+)/m.exec(stdout)?.[1];
  return version === undefined ? undefined : { version, released: releaseDay(version) };
}

/** The day in "release-20260905.0", "20260905.0" and Debian's "0.0~20240729.0". */
export function releaseDay(version: string): Date | undefined {
  const [, year, month, day] = /(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)/.exec(version) ?? [];
  if (year === undefined) return undefined;
  const date = new Date(`${year}-${month}-${day}T00:00:00Z`);
  // 20261332 is no day.
  return Number.isNaN(date.getTime()) || date.getUTCDate() !== Number(day) ? undefined : date;
}

/** Days as releases write them: "20260905". */
export const dayText = (date: Date): string => date.toISOString().slice(0, 10).replaceAll("-", "");
