// The conformance cases in which a virtual machine could behave differently. All of them: `npm test -- vm-all conformance`.
import { casesAsTests } from "../conformance/cases-as-tests.ts";

const chosen = [
  "dataplane/exec.yaml",
  "dataplane/files.yaml",
  "dataplane/services.yaml",
  "dataplane/store.yaml",
  "dataplane/checkpoints.yaml",
  "dataplane/containers.yaml",
  "gateway/lifecycle.yaml",
];

casesAsTests(({ path }) => chosen.includes(path));
