import { expect, it } from "vitest";
import { checkDataPlaneFields } from "./known-fields.ts";
import { nearestName } from "./nearest-name.ts";

const check = (method: string, url: string, body: object, headers = {}) =>
  checkDataPlaneFields({ method, url, headers }, body);

it.each([
  ["POST", "/v1/exec", { cmd: [], timout_ms: 1 }, 'no field "timout_ms"; did you mean "timeout_ms"?'],
  ["POST", "/v1/exec?x=1", { cmd: [], zzzzzz: 1 }, 'no field "zzzzzz" ('],
  ["POST", "/v1/processes", { cmd: [], tty: { cols: 1, row: 2 } }, 'did you mean "tty.rows"?'],
  ["PUT", "/v1/services/web", { cmd: "x", enviroment: {}, env: { any: "1" } }, '"enviroment"'],
  ["POST", "/v1/restore", { checkpointid: "x" }, 'did you mean "checkpoint_id"?'],
  ["POST", "/v1/exec", { constructor: 1 }, '"constructor"'],
])("%s %s refuses %j", (method, url, body, message) => {
  expect(() => check(method, url, body)).toThrow(message);
  expect(() => check(method, url, body, { "x-cloche-unknown-fields": "ignore" })).not.toThrow();
});

it("takes what is known, any variable, and null", () => {
  check("POST", "/v1/exec", { cmd: ["a"], env: { ANY: "1" }, stdin: null });
  check("POST", "/v1/processes", { cmd: ["a"], tty: null });
  check("POST", "/cloche/anything", { of: "the host" });
});

it("finds what was meant, and nothing far away", () => {
  expect(nearestName("egres", ["name", "egress"])).toBe("egress");
  expect(nearestName("CLOCHE_GATEWAY_PROT", ["CLOCHE_GATEWAY_PORT", "CLOCHE_GATEWAY_HOST"])).toBe(
    "CLOCHE_GATEWAY_PORT",
  );
  expect(nearestName("colour", ["name", "egress"])).toBeUndefined();
});
