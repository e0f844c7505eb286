/** A cell as SVG: a bar from 1 to the median of each arm on a logarithmic axis, a line on to p95, a tick at p99. */
import type { CellResult } from "./runner.ts";

const widthPx = 760;
const labelPx = 250;
const rowPx = 30;
const topPx = 46;
const marginPx = 90;

export function plotOf(result: CellResult, { at, machine }: { at: string; machine: string }): string {
  const arms = result.arms.filter(({ samples }) => samples > 0);
  // What took nothing (no block, no CPU) has no place on a logarithmic axis: it begins and ends at its left.
  const medians = arms.map(({ p50 }) => p50).filter((value) => value > 0);
  const low = 10 ** Math.floor(Math.log10(medians.length > 0 ? Math.min(...medians) : 1));
  const high = 10 ** Math.ceil(Math.log10(Math.max(...arms.map(({ p99 }) => p99), low) * 1.001));
  const x = (value: number): number =>
    labelPx + ((widthPx - labelPx - marginPx) * Math.log(Math.max(value, low) / low)) / Math.log(high / low);
  const heightPx = topPx + arms.length * rowPx + 40;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${widthPx}" height="${heightPx}" font-family="sans-serif" font-size="12">`,
    `<rect width="100%" height="100%" fill="white"/>`,
    text(10, 20, result.cell, 'font-size="15" font-weight="bold"'),
    text(10, heightPx - 8, `${machine}; ${at}`, 'fill="#777" font-size="10"'),
  ];
  const bottomPx = topPx + arms.length * rowPx;
  for (let value = low; value <= high * 1.0001; value *= 10) {
    parts.push(line(x(value), topPx - 8, x(value), bottomPx, "#ddd"));
    parts.push(
      text(x(value), bottomPx + 14, `${Number(value.toPrecision(1))}`, 'fill="#555" text-anchor="middle"'),
    );
  }
  arms.forEach((arm, index) => {
    const y = topPx + index * rowPx;
    const middle = y + 10;
    const colour = arm.arm.includes("runsc") ? "#9aa5b1" : "#2463a8";
    parts.push(text(labelPx - 8, middle + 4, arm.arm, 'text-anchor="end"'));
    parts.push(
      `<rect x="${labelPx}" y="${y}" width="${fixed(x(arm.p50) - labelPx)}" height="20" fill="${colour}"/>`,
    );
    parts.push(line(x(arm.p50), middle, x(arm.p95), middle, "#333"));
    parts.push(line(x(arm.p99), y + 3, x(arm.p99), y + 17, "#333"));
    parts.push(text(x(Math.max(arm.p99, arm.p50)) + 6, middle + 4, short(arm.p50), 'fill="#333"'));
  });
  return `${[...parts, "</svg>"].join("\n")}\n`;
}

const fixed = (value: number): string => Math.max(value, 0).toFixed(1);
const short = (value: number): string => value.toPrecision(3).replace(/\.?0+$/, "");
const text = (x: number, y: number, content: string, more: string): string =>
  `<text x="${fixed(x)}" y="${fixed(y)}" ${more}>${escape(content)}</text>`;
const line = (x1: number, y1: number, x2: number, y2: number, colour: string): string =>
  `<line x1="${fixed(x1)}" y1="${fixed(y1)}" x2="${fixed(x2)}" y2="${fixed(y2)}" stroke="${colour}"/>`;
const escape = (value: string): string =>
  value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
