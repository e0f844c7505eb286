import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { opensWhileQuiet } from "./outside-connections.ts";

const folder = mkdtempSync(join(tmpdir(), "cloche-proc-net-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const heading =
  "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
const line = (local: string, remote: string, state: string): string =>
  `   0: ${local} ${remote} ${state} 00000000:00000000 00:00000000 00000000     0        0        1 1 0`;
const snmp = [
  "Ip: Forwarding DefaultTTL",
  "Ip: 0 64",
  "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens",
  "Tcp: 1 200 120000 -1 3 8",
].join("\n");

function opens(tcp: string[], tcp6: string[] = [], counters = snmp): number | undefined {
  writeFileSync(join(folder, "snmp"), counters);
  writeFileSync(join(folder, "tcp"), [heading, ...tcp, ""].join("\n"));
  writeFileSync(join(folder, "tcp6"), [heading, ...tcp6, ""].join("\n"));
  return opensWhileQuiet(0x0fe6, folder);
}

const agents = line("8694E70A:0FE6", "0100E70A:C8D8", "01");

test("listeners, what is closed, loopback and the agent's own connections are no connections to the outside", () => {
  const quiet = [
    agents,
    line("00000000:1F90", "00000000:0000", "0A"),
    line("8694E70A:A4E2", "2D710B08:0050", "07"),
    line("0100007F:8D7B", "0100007F:F7BF", "01"),
  ];
  const quiet6 = [
    line("00000000000000000000000001000000:8D7B", "00000000000000000000000001000000:F7BF", "01"),
    line("0000000000000000FFFF00000100007F:8D7B", "0000000000000000FFFF00000200007F:F7BF", "01"),
    line("00000000000000000000000000000000:1F90", "00000000000000000000000000000000:0000", "0A"),
  ];
  expect(opens(quiet, quiet6)).toBe(3);
});

test.each([
  ["to another address", [line("8694E70A:A4E2", "2D710B08:0050", "01")], []],
  ["not answered yet", [line("8694E70A:A4E2", "00000000:0000", "02")], []],
  ["half closed", [line("8694E70A:A4E2", "2D710B08:0050", "08")], []],
  ["to the sandbox's own address", [line("8694E70A:5046", "8694E70A:7EA6", "01")], []],
  [
    "of IPv6",
    [],
    [line("0000000000000000FFFF00008694E70A:5046", "0000000000000000FFFF00002D710B08:0050", "01")],
  ],
])("one %s is seen", (_, tcp, tcp6) => {
  expect(opens([agents, ...tcp], tcp6)).toBeUndefined();
});

test("nothing is told where the kernel does not tell", () => {
  expect(opens([], [], "Ip: 1")).toBeUndefined();
  expect(opensWhileQuiet(4070, join(folder, "missing"))).toBeUndefined();
});
