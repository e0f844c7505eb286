import { printable } from "@cloche/protocol";

/** Prints rows as columns of equal width; the first row has the headings. What a stranger may have named is made printable. */
export function printTable(rows: readonly (readonly string[])[]): void {
  const shown = rows.map((row) => row.map(printable));
  const widths = (shown[0] ?? []).map((_, at) => Math.max(...shown.map((row) => row[at]?.length ?? 0)));
  for (const row of shown)
    console.log(
      row
        .map((cell, at) => cell.padEnd(widths[at] ?? 0))
        .join("  ")
        .trimEnd(),
    );
}
