/** Every suite. */
import { e2bJavascript } from "./e2b-javascript.ts";
import { e2bPython } from "./e2b-python.ts";
import { inspectAi } from "./inspect-ai.ts";
import { langchainDeepagents } from "./langchain-deepagents.ts";
import type { Suite } from "./suite.ts";

export const suites: readonly Suite[] = [e2bJavascript, e2bPython, inspectAi, langchainDeepagents];
