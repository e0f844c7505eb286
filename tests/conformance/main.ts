// Runs the conformance cases against any service: `sh scripts/node.sh tests/conformance/main.ts --help`.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { loadCaseFiles } from "./case-file.ts";
import { Session, type TestSandbox } from "./session.ts";

const usage = `usage: main.ts --gateway URL --api-key KEY --edge HOST:PORT --ca FILE [--other-team-key KEY] [--only TEXT]
               [--patience N]

Runs spec/cases against a running service. Exits with 1 when a case fails.
  --gateway         base URL of the gateway, such as http://127.0.0.1:7080
  --api-key         a team's API key
  --edge            where to connect for every sandbox domain, such as 127.0.0.1:7443
  --ca              PEM file of the authority that signed the edge's certificate
  --other-team-key  API key of a second team, for the cases about other teams
  --patience        waits this many times as long as usual for anything, such as 5 for emulated machines
  --only            only cases whose file or name has this text in it`;

const { values } = parseArgs({
  options: {
    gateway: { type: "string" },
    "api-key": { type: "string" },
    edge: { type: "string" },
    ca: { type: "string" },
    "other-team-key": { type: "string" },
    only: { type: "string", default: "" },
    patience: { type: "string", default: "1" },
    help: { type: "boolean", default: false },
  },
});
const { gateway, edge, ca, "api-key": apiKey, "other-team-key": otherTeamKey, only } = values;
if (values.help || !gateway || !edge || !ca || !apiKey) {
  console.log(usage);
  process.exit(values.help ? 0 : 2);
}
const patience = Number(values.patience);
if (!(patience >= 1)) {
  console.error(`--patience is ${JSON.stringify(values.patience)}; it must be a number from 1`);
  process.exit(2);
}
const [edgeHost = "", edgePort = "443"] = edge.replace(/^https:\/\//, "").split(":");
const session = new Session({
  gatewayUrl: gateway,
  apiKey,
  edgeHost,
  edgePort: Number(edgePort),
  ca: readFileSync(ca, "utf8"),
  patience,
  ...(otherTeamKey === undefined ? {} : { otherTeamKey }),
});

let passed = 0;
let failed = 0;
let skipped = 0;
try {
  for (const file of loadCaseFiles()) {
    const chosen = file.cases.filter((one) => file.path.includes(only) || one.name.includes(only));
    const needsShared = chosen.some((one) => (one.sandbox ?? file.sandbox ?? "shared") === "shared");
    const shared: TestSandbox | undefined = needsShared
      ? await session.createSandbox(file.create)
      : undefined;
    for (const one of chosen) {
      const lacking = session.lacks(one.needs);
      if (lacking !== undefined) {
        skipped += 1;
        console.log(`skip  ${file.path}: ${one.name} (${lacking})`);
        continue;
      }
      const problem = await session.run(file, one, shared).then(
        () => undefined,
        (error: Error) => error.message,
      );
      const known = one.known_failure !== undefined;
      if ((problem === undefined) !== known) passed += 1;
      else failed += 1;
      const fate = problem === undefined ? (known ? "FAIL " : "ok   ") : known ? "known" : "FAIL ";
      console.log(`${fate} ${file.path}: ${one.name}`);
      if (problem !== undefined && !known) console.log(problem.replaceAll(/^/gm, "      "));
      if (problem === undefined && known) console.log(`      it passes now: remove its known_failure mark`);
    }
    if (shared) await session.discard(shared.id);
  }
} finally {
  await session.close();
}
console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`);
process.exit(failed > 0 ? 1 : 0);
