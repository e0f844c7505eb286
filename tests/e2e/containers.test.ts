// Services in containers in sandboxes of the service's runtime.
import { sharedClient } from "../fixtures/client.ts";
import { containersAsLived } from "./containers-as-lived.ts";

containersAsLived(sharedClient());
