// Defences of the places that teams share, and of the log against floods (defences.ts).
import type { Defence } from "./defence.ts";

const network = { project: "host", test: "tests/host/network.test.ts", heavy: true } as const;
const rules = "packages/host/src/network/rules.ts";

export const shareDefences: readonly Defence[] = [
  {
    what: "a team's sandboxes share their connections",
    file: "packages/host/src/drivers/gvisor/machine-units.ts",
    find: "if (resources.teamId) await this.#network.setTeamOf(unit.lease.agentHost, resources.teamId);",
    replace: "",
    project: "service",
    test: "tests/service/egress.test.ts",
    named: "holds through suspend",
    heavy: true,
  },
  {
    what: "connections of a team are bounded by the host's table",
    file: rules,
    find: "ct count over ${ofPart(ofTeam)} }",
    replace: "ct count over ${ofPart(ofTeam) * 64} }",
    ...network,
    named: "gives a team's sandboxes so many together",
  },
  {
    what: "a restart forgets no team of a sandbox that runs",
    file: rules,
    find: "`add map ${table} teams { type ifname : mark; }`,",
    replace: "`add map ${table} teams { type ifname : mark; }`, `flush map ${table} teams`,",
    ...network,
    named: "after kill -9 of the service too",
  },
  {
    what: "the slot of a sandbox of an earlier service is of no team once it is released",
    file: "packages/host/src/network/slot-teams.ts",
    find: "for (const [slot, mark] of readTeams(json)) this.#marks.set(slot, mark);",
    replace: "void readTeams(json);",
    ...network,
    named: "after kill -9 of the service too",
  },
  {
    what: "connections of all sandboxes leave room in the host's table",
    file: rules,
    find: "ct count over ${ofPart(all)} }",
    replace: "ct count over ${ofPart(all) * 64} }",
    ...network,
    named: "leaves a quarter of the table",
  },
  {
    what: "entries of closed connections leave the host's table soon",
    file: rules,
    find: 'forward iifname "${uplink}" ct state new meta l4proto tcp ct timeout set "sandboxes"`',
    replace: 'forward iifname "${uplink}" ct state new meta l4proto tcp counter`',
    ...network,
    named: "keeps the entries of closed connections",
  },
  {
    what: "a sandbox opens connections at a bounded rate",
    file: rules,
    find: "limit rate over ${OPENED_PER_SECOND}/second burst ${OPENED_BURST} packets",
    replace: "limit rate over ${OPENED_PER_SECOND * 100}/second burst ${OPENED_BURST * 100} packets",
    ...network,
    named: "bounds how fast",
  },
  {
    what: "places of a team to wait for names are bounded",
    file: "packages/host/src/network/shared-places.ts",
    find: "byTeam >= ofTeam ||",
    replace: "",
    project: "unit",
    test: "packages/host/src/network/dns-forwarder.test.ts",
    named: "team's sandboxes",
  },
  {
    what: "a team without places gets one when others took all",
    file: "packages/host/src/network/shared-places.ts",
    find: "(this.#all >= all && byTeam >= always)",
    replace: "this.#all >= all || always < 0",
    project: "unit",
    test: "packages/host/src/network/shared-places.test.ts",
    named: "keeps a place",
  },
  {
    what: "questions of a team for names are bounded in rate",
    file: "packages/host/src/network/dns-forwarder.ts",
    find: "|| this.#rateOfTeams.take(team) > 0",
    replace: "|| team.length < 0",
    project: "unit",
    test: "packages/host/src/network/dns-forwarder.test.ts",
    named: "no team above its rate",
  },
  {
    what: "log lines that strangers cause are bounded in rate",
    file: "packages/base/src/bounded-log.ts",
    find: "if (rate.take(message) === 0)",
    replace: "if (rate.take(message) >= 0)",
    project: "unit",
    test: "packages/base/src/bounded-log.test.ts",
    named: "no more lines",
  },
  {
    what: "log lines that strangers cause are short",
    file: "packages/base/src/bounded-log.ts",
    find: "text.length <= most ? text",
    replace: "text.length >= 0 ? text",
    project: "unit",
    test: "packages/base/src/bounded-log.test.ts",
    named: "short lines",
  },
  ...(
    [
      [
        "edge",
        "packages/edge/src/edge.ts",
        "exchange.callerIsKnown ? this.#log : this.#strangersLog",
        "this.#log",
      ],
      ["gateway", "packages/gateway/src/http/handler.ts", "known.has(request) ? log : strangersLog", "log"],
      [
        "E2B endpoint",
        "packages/e2b/src/endpoint.ts",
        "isKnownCaller(request) ? this.#options.log : this.#strangersLog",
        "this.#options.log",
      ],
      ["cluster's port", "packages/trust/src/cluster-port.ts", "strangersLog.warn(", "log.warn("],
    ] as const
  ).map(
    ([where, file, find, replace]): Defence => ({
      what: `strangers do not flood the log of the ${where}`,
      file,
      find,
      replace,
      project: "unit",
      test: file.includes("trust")
        ? "packages/trust/src/cluster-port.test.ts"
        : `${file.slice(0, file.lastIndexOf("/"))}/log-flood.test.ts`,
      ...(file.includes("trust") && { named: "bounded number of lines" }),
    }),
  ),
];
