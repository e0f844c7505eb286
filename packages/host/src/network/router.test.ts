import { expect, it } from "vitest";
import { droppingChain } from "./router.ts";

it("finds another firewall that would drop what sandboxes send", () => {
  const chain = (name: string, more: object) => ({ chain: { family: "ip", table: "filter", name, ...more } });
  const input = chain("INPUT", { hook: "input", policy: "drop" });
  const open = chain("FORWARD", { hook: "forward", policy: "accept" });
  const dropping = chain("FORWARD", { hook: "forward", policy: "drop" });
  expect(droppingChain({ nftables: [{ metainfo: {} }, input, open, chain("DOCKER", {})] })).toBeUndefined();
  expect(droppingChain({ nftables: [input, dropping] })).toBe("ip filter FORWARD");
});
