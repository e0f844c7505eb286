import { expect, it } from "vitest";
import { boundCallTimeout } from "./call-timeout.ts";

it.each([
  ["grpc-timeout", "99999999H", "2147483S"],
  ["grpc-timeout", "597H", "2147483S"],
  ["grpc-timeout", "99999999M", "2147483S"],
  ["grpc-timeout", "99999999S", "2147483S"],
  ["connect-timeout-ms", "9999999999", "2147483647"],
  ["connect-timeout-ms", "2147483648", "2147483647"],
])("shortens %s: %s, which no timer can wait, to %s", (name, value, bounded) => {
  const headers = { [name]: value };
  boundCallTimeout(headers);
  expect(headers).toEqual({ [name]: bounded });
});

it.each([
  // What our own clients, a day's deadline of gRPC's and what is wrong in form send.
  ["grpc-timeout", "10000m"],
  ["grpc-timeout", "596H"],
  ["grpc-timeout", "99999999m"],
  ["grpc-timeout", "86400S"],
  ["grpc-timeout", "soon"],
  ["grpc-timeout", "999999999H"],
  ["connect-timeout-ms", "10000"],
  ["connect-timeout-ms", "2147483647"],
  ["connect-timeout-ms", "soon"],
])("leaves %s: %s", (name, value) => {
  const headers = { [name]: value };
  boundCallTimeout(headers);
  expect(headers).toEqual({ [name]: value });
});

it("adds no header", () => {
  const headers = {};
  boundCallTimeout(headers);
  expect(headers).toEqual({});
});
