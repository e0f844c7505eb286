/** The agent over a given disk as a process that can be killed: prints its port and a token. Used by store-kill.test.ts. */
import { startAgent, token } from "../../packages/agent/src/testing/agent-fixture.ts";

const fixture = await startAgent({ diskPath: process.argv[2] ?? "" });
await fixture.assign();
process.stdout.write(`${fixture.port} ${token()}\n`);
