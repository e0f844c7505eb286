/** Every suite. */
import { computesdkE2b } from "./computesdk-e2b.ts";
import { computesdkProvider } from "./computesdk.ts";
import { e2bJavascript } from "./e2b-javascript.ts";
import { e2bPython } from "./e2b-python.ts";
import { inspectAi } from "./inspect-ai.ts";
import { langchainDeepagentsJs } from "./langchain-deepagents-js.ts";
import { langchainDeepagents } from "./langchain-deepagents.ts";
import { mastraWorkspace } from "./mastra-workspace.ts";
import { miniSweAgent } from "./mini-swe-agent.ts";
import type { Suite } from "./suite.ts";
import { sweRex } from "./swe-rex.ts";

export const suites: readonly Suite[] = [
  computesdkProvider,
  computesdkE2b,
  e2bJavascript,
  e2bPython,
  inspectAi,
  langchainDeepagents,
  langchainDeepagentsJs,
  mastraWorkspace,
  miniSweAgent,
  sweRex,
];
