// Processes and terminals in virtual machines: the tests of tests/e2e/processes.test.ts.
import { sharedClient } from "../fixtures/client.ts";
import { processesAsLived } from "../e2e/processes-as-lived.ts";

processesAsLived(sharedClient());
