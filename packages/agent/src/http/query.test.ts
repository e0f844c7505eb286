import { describe, expect, it } from "vitest";
import { Query, queryBoolean, queryInteger } from "./query.ts";

const depth = (text: string): number | undefined =>
  queryInteger(new Query(text), "depth", 1, Number.MAX_SAFE_INTEGER);
const recursive = (text: string): boolean | undefined => queryBoolean(new Query(text), "recursive");

describe("a parameter of a query", () => {
  it("is undefined where it is left out, and refused where it is empty", () => {
    expect(depth("")).toBeUndefined();
    expect(recursive("a=1")).toBeUndefined();
    for (const text of ["depth=", "depth", "depth=&depth=3"])
      expect(() => depth(text)).toThrow(/^depth must/);
    for (const text of ["recursive=", "recursive"]) expect(() => recursive(text)).toThrow(/^recursive must/);
  });

  it("is a whole number of the bounds that are named", () => {
    expect(depth("depth=1")).toBe(1);
    expect(depth("depth=9007199254740991")).toBe(Number.MAX_SAFE_INTEGER);
    for (const wrong of ["0", "-1", "1.5", "1e3", "two", "9007199254740992", "99999999999999999"])
      expect(() => depth(`depth=${wrong}`)).toThrow(/^depth must be an integer from 1 to/);
  });

  it("is true or false, as OpenAPI writes a boolean", () => {
    expect([recursive("recursive=true"), recursive("recursive=false")]).toEqual([true, false]);
    for (const wrong of ["1", "0", "TRUE", "yes"])
      expect(() => recursive(`recursive=${wrong}`)).toThrow(/true or false/);
  });
});
