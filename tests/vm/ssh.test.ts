// OpenSSH with virtual machines: the tests of tests/e2e/ssh.test.ts.
import { sharedClient } from "../fixtures/client.ts";
import { sshAsLived } from "../e2e/ssh-as-lived.ts";

sshAsLived(sharedClient(), 1_000_000);
