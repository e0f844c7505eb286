// Processes and terminals on gVisor; tests/vm has the same of virtual machines.
import { sharedClient } from "../fixtures/client.ts";
import { processesAsLived } from "./processes-as-lived.ts";

processesAsLived(sharedClient());
