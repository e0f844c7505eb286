import { sandboxStates, transitions, type SandboxState } from "@cloche/protocol";
import { MachinePhase } from "@cloche/protocol/host";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { decideRemedy, decideRequest, follow, type LifecycleRequest, type MachineSight } from "./decide.ts";

const requests: LifecycleRequest[] = ["suspend", "resume", "delete", "fork", "issue_token", "update"];
const short = (name: string): SandboxState => `SANDBOX_STATE_${name}` as SandboxState;

describe("decideRequest", () => {
  /** spec/contract.md, Gateway, as a table: `>` begins and leads there, `=` answers unchanged, `x` is denied. */
  const decided: Record<LifecycleRequest, Record<string, string>> = {
    suspend: {
      CREATING: "x",
      RUNNING: ">SUSPENDING",
      SUSPENDING: "=",
      SUSPENDED: "=",
      RESUMING: "x",
      DELETING: "x",
      ERROR: "x",
    },
    resume: {
      CREATING: "x",
      RUNNING: "=",
      SUSPENDING: "x",
      SUSPENDED: ">RESUMING",
      RESUMING: "=",
      DELETING: "x",
      ERROR: "x",
    },
    delete: {
      CREATING: ">DELETING",
      RUNNING: ">DELETING",
      SUSPENDING: ">DELETING",
      SUSPENDED: ">DELETING",
      RESUMING: ">DELETING",
      DELETING: "=",
      ERROR: ">DELETING",
    },
    fork: {
      CREATING: "x",
      RUNNING: "=",
      SUSPENDING: "x",
      SUSPENDED: "=",
      RESUMING: "x",
      DELETING: "x",
      ERROR: "x",
    },
    issue_token: {
      CREATING: "=",
      RUNNING: "=",
      SUSPENDING: "=",
      SUSPENDED: "=",
      RESUMING: "=",
      DELETING: "x",
      ERROR: "x",
    },
    update: {
      CREATING: "=",
      RUNNING: "=",
      SUSPENDING: "=",
      SUSPENDED: "=",
      RESUMING: "=",
      DELETING: "x",
      ERROR: "=",
    },
    update_egress: {
      CREATING: "x",
      RUNNING: "=",
      SUSPENDING: "=",
      SUSPENDED: "=",
      RESUMING: "=",
      DELETING: "x",
      ERROR: "x",
    },
  };

  it.each(
    requests.flatMap((request) =>
      Object.entries(decided[request]).map(([state, what]) => [request, state, what] as const),
    ),
  )("%s in %s: %s", (request, state, what) => {
    const verdict = decideRequest({ id: "sbx-1", state: short(state) }, request);
    if (what === "=") return expect(verdict).toEqual({ kind: "unchanged" });
    if (what.startsWith(">"))
      return expect(verdict).toMatchObject({ kind: "begin", to: short(what.slice(1)) });
    if (verdict.kind !== "deny") throw new Error(`${request} was not denied`);
    expect(verdict.error.code).toBe("failed_precondition");
    expect(verdict.error.message).toContain(`sandbox "sbx-1" is in ${short(state)}; `);
  });

  it("says why a sandbox is in its state, and what can be done", () => {
    const verdict = decideRequest(
      { id: "sbx-1", state: "SANDBOX_STATE_ERROR", errorMessage: "its host was lost" },
      "resume",
    );
    expect(verdict.kind === "deny" && verdict.error.message).toMatch(
      /^sandbox "sbx-1" is in SANDBOX_STATE_ERROR: its host was lost; ResumeSandbox needs SANDBOX_STATE_SUSPENDED; .*cloche checkpoint ls sbx-1.*cloche rm sbx-1/,
    );
  });

  it("never leads where the transition table does not", () => {
    fc.assert(
      fc.property(fc.constantFrom(...sandboxStates), fc.constantFrom(...requests), (state, request) => {
        const verdict = decideRequest({ id: "sbx-1", state }, request);
        if (verdict.kind !== "begin") return;
        expect(Object.values(transitions[state])).toContain(verdict.to);
      }),
    );
  });
});

describe("follow", () => {
  it("throws on what the table forbids", () => {
    expect(() => follow("SANDBOX_STATE_DELETING", "resume")).toThrow(/no resume from SANDBOX_STATE_DELETING/);
  });
});

describe("decideRemedy", () => {
  const sights: MachineSight[] = [
    "absent",
    ...Object.values(MachinePhase).filter((one) => typeof one === "number"),
  ];

  it("leads only along the transition table, and never out of ERROR or DELETING", () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...sandboxStates),
        fc.boolean(),
        fc.constantFrom(...sights),
        (state, isFork, sight) => {
          const remedy = decideRemedy(state, isFork, sight);
          if (!("to" in remedy)) return;
          expect(["SANDBOX_STATE_RUNNING", "SANDBOX_STATE_SUSPENDED"]).toContain(state);
          expect(reachable(state)).toContain(remedy.to);
        },
      ),
    );
  });

  it("leaves alone what agrees", () => {
    const agreeing: [SandboxState, MachineSight][] = [
      ["SANDBOX_STATE_RUNNING", MachinePhase.RUNNING],
      ["SANDBOX_STATE_SUSPENDED", MachinePhase.SUSPENDED],
      ["SANDBOX_STATE_SUSPENDED", MachinePhase.STOPPED],
      ["SANDBOX_STATE_ERROR", MachinePhase.FAILED],
      ["SANDBOX_STATE_ERROR", "absent"],
    ];
    for (const [state, sight] of agreeing)
      expect(decideRemedy(state, false, sight)).toEqual({ kind: "none" });
  });

  it("waits while a machine is on its way", () => {
    for (const sight of [MachinePhase.STARTING, MachinePhase.RESUMING, MachinePhase.SUSPENDING]) {
      expect(decideRemedy("SANDBOX_STATE_RUNNING", false, sight)).toEqual({ kind: "none" });
    }
  });
});

function reachable(from: SandboxState): Set<SandboxState> {
  const found = new Set<SandboxState>();
  const open: SandboxState[] = [from];
  for (let state = open.pop(); state !== undefined; state = open.pop()) {
    for (const next of Object.values(transitions[state])) {
      if (!found.has(next)) open.push(next);
      found.add(next);
    }
  }
  return found;
}
