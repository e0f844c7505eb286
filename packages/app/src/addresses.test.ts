import { expect, test } from "vitest";
import { dataPlaneUrl, plainEdge } from "./addresses.ts";

const settings = { edgePort: 7443, edgeHttpPort: 7081, baseDomain: "cloche.example" };

test.each([
  ["127.0.0.1", {}, "http://127.0.0.1:7081", "127.0.0.1"],
  ["127.0.0.9", {}, "http://127.0.0.9:7081", "127.0.0.9"],
  ["::1", {}, "http://[::1]:7081", "::1"],
  ["127.0.0.1", { edgeHttpPort: 0 }, "https://cloche.example:7443", undefined],
  ["0.0.0.0", {}, "https://cloche.example:7443", "127.0.0.1"],
  ["::", { edgePort: 443 }, "https://cloche.example", "127.0.0.1"],
  ["192.0.2.1", {}, "https://cloche.example:7443", "127.0.0.1"],
])("with the edge on %s %o the data plane is at %s, without TLS on %s", (edgeHost, more, url, plain) => {
  const config = { ...settings, edgeHost, ...more };
  expect(dataPlaneUrl(config)).toBe(url);
  expect(plainEdge(config)?.address).toBe(plain);
});
