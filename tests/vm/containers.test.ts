// Services in containers in virtual machines, whose users have a user namespace: the tests of tests/e2e/containers.test.ts.
import { containersAsLived } from "../e2e/containers-as-lived.ts";
import { sharedClient } from "../fixtures/client.ts";

containersAsLived(sharedClient());
