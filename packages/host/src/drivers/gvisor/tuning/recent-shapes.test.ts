import { expect, test } from "vitest";
import { RecentShapes, shapeMemoryMs } from "./recent-shapes.ts";

const shape = (memoryMb: number) => ({ cpus: 1, memoryMb });

test("wants the shapes that were asked for twice lately, two at most, the latest first", () => {
  const shapes = new RecentShapes();
  shapes.note(shape(256), 0);
  expect(shapes.wanted(0)).toEqual([]);
  shapes.note({ cpus: 2, memoryMb: 256 }, 1);
  expect(shapes.wanted(1)).toEqual([]);
  for (const memoryMb of [256, 512, 512, 128, 128]) shapes.note(shape(memoryMb), 2);
  expect(shapes.wanted(2)).toEqual([shape(128), shape(512)]);
  shapes.note(shape(256), 3);
  expect(shapes.wanted(3)).toEqual([shape(256), shape(128)]);
});

test("forgets what was asked for long ago, however many others come between", () => {
  const shapes = new RecentShapes();
  shapes.note(shape(256), 0);
  shapes.note(shape(256), 5);
  expect(shapes.wanted(shapeMemoryMs - 1)).toEqual([shape(256)]);
  expect(shapes.wanted(shapeMemoryMs)).toEqual([]);
  shapes.note(shape(256), shapeMemoryMs);
  expect(shapes.wanted(shapeMemoryMs)).toEqual([shape(256)]);
  for (let other = 0; other < 40; other += 1) shapes.note(shape(1_000 + other), shapeMemoryMs);
  expect(shapes.wanted(shapeMemoryMs)).toEqual([]);
});
