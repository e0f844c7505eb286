// Files as their users live with them, on a virtual machine.
import { filesAsLived } from "../e2e/files-as-lived.ts";
import { sharedClient } from "../fixtures/client.ts";

filesAsLived(sharedClient());
