const units = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

/** `size_human`: 0 B, 512 B, 1.5 MiB, 12 GiB. */
export function humanBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const text = unit === 0 || value >= 100 ? String(Math.round(value)) : String(Math.round(value * 10) / 10);
  return `${text} ${units[unit]}`;
}
