// Files on gVisor; tests/vm has the same of virtual machines.
import { sharedClient } from "../fixtures/client.ts";
import { filesAsLived } from "./files-as-lived.ts";

filesAsLived(sharedClient());
