// OpenSSH with gVisor sandboxes; tests/vm has the same of virtual machines.
import { sharedClient } from "../fixtures/client.ts";
import { sshAsLived } from "./ssh-as-lived.ts";

sshAsLived(sharedClient(), 20_000_000);
