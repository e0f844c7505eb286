// Files as their users live with them, on a virtual machine. Half the size is large for one that is emulated.
import { filesAsLived } from "../e2e/files-as-lived.ts";
import { sharedClient } from "../fixtures/client.ts";

filesAsLived(sharedClient(), 24 * 1_048_576);
